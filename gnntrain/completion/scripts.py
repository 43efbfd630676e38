"""What a shell has to know: a function that asks `gnntrain` for the words that fit."""

from __future__ import annotations

# Bash takes = and : for ends of words, so the part before the last = is taken off again.
_BASH = """\
_gnntrain() {
    local IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}" cur prefix
    cur="${line##*[[:space:]]}"
    COMPREPLY=($("${COMP_WORDS[0]}" completion bash --line "$line" 2>/dev/null))
    if [[ $cur == *=* && $COMP_WORDBREAKS == *=* ]]; then
        prefix="${cur%"${cur##*=}"}"
        COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    fi
    if [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *[=.] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o default -F _gnntrain gnntrain
"""

_ZSH = """\
#compdef gnntrain
_gnntrain() {
    local -a open done
    local one
    for one in "${(@f)$(${words[1]} completion zsh --line "$BUFFER[1,CURSOR]" 2>/dev/null)}"; do
        case $one in
            '') ;;
            *[=.]) open+=("$one") ;;
            *) done+=("$one") ;;
        esac
    done
    if (( ${#open} + ${#done} == 0 )); then
        compset -P '*='
        _files
        return
    fi
    compadd -Q -S '' -a open
    compadd -Q -a done
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _gnntrain gnntrain
"""

_FISH = """\
function __gnntrain
    set -l words (commandline -opc)
    set -l found ($words[1] completion fish --line (commandline -cp) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c gnntrain -k -f -a '(__gnntrain)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""By shell."""

INSTALL = {
    "bash": 'eval "$(gnntrain completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(gnntrain completion zsh)"    # in ~/.zshrc',
    "fish": "gnntrain completion fish | source     # in ~/.config/fish/config.fish",
}
"""The line that turns it on, by shell."""
