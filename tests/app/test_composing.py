"""Overrides become one configuration or one message."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from gnntrain.app import compose_config, recompose_config
from gnntrain.config import Config, ConfigError, LoggerConfig, Problem, from_dict
from gnntrain.groups import config_groups


def problems_of(*overrides: str, config_dirs: tuple[Path, ...] = ()) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        compose_config(overrides, config_dirs)
    return caught.value.problems


def only_problem(*overrides: str) -> Problem:
    (problem,) = problems_of(*overrides)
    return problem


def test_the_yaml_holds_every_key_and_gives_the_configuration_back() -> None:
    config = compose_config(["experiment=cora_gat", "run.name=x"])
    assert from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config


def test_an_experiment_chooses_and_the_command_line_has_the_last_word() -> None:
    config = compose_config(
        ["trainer.epochs=70", "experiment=cora_gat", "sampler=neighbor", "model.heads=4"]
    )
    assert (config.dataset.name, config.model.name) == ("cora", "gat")
    assert (config.sampler.name, config.trainer.epochs) == ("neighbor", 70)
    assert config.to_dict()["model"]["heads"] == 4


@pytest.mark.parametrize(
    ("override", "names"),
    [("logger=[jsonl,csv]", ["jsonl", "csv"]), ("logger=csv", ["csv"]), ("logger=[]", [])],
)
def test_loggers_are_chosen_by_a_list(override: str, names: list[str]) -> None:
    assert list(compose_config(override.split()).logger.chosen()) == names


def test_a_loggers_options_go_with_those_of_its_file() -> None:
    typed = ["logger=[wandb,mlflow]", "logger.wandb.group=mine"]
    wandb, mlflow = {"project": "gnntrain", "group": "mine"}, {"experiment": "gnntrain"}
    chosen = compose_config(typed, for_here=False).logger.chosen()
    assert chosen == {"wandb": wandb, "mlflow": mlflow}
    begun = Config(logger=LoggerConfig(wandb={"project": "theirs"}))
    resumed = recompose_config(begun.to_dict(), ["logger=[wandb,mlflow]"], for_here=False)
    assert resumed.logger.chosen() == {"wandb": {"project": "theirs"}, "mlflow": mlflow}


@pytest.mark.parametrize(
    ("typed", "beside"),
    [
        ("model=gta", ["model.heads=3", "sampler.fan_outs=[5,5,5]"]),
        ("experiment=cora_gta", ["model.heads=3", "sampler.fan_outs=[5,5,5]", "dataset.split=1"]),
        ("dataset=county_incomee", ["task.type=node_regression", "dataset.split=file.csv"]),
    ],
)
def test_keys_that_depend_on_a_misspelt_option_are_no_mistakes(
    typed: str, beside: list[str]
) -> None:
    assert only_problem(typed, *beside).assignment == typed


def test_keys_that_a_run_cannot_change_are_told_with_all_other_mistakes() -> None:
    typed = ["trainer.epoch=3", "trainer.lr=0.5", "trainer.seed=x", "model=gat"]
    with pytest.raises(ConfigError) as caught:
        recompose_config(Config().to_dict(), typed)
    assert sorted(problem.assignment for problem in caught.value.problems) == sorted(typed)


def test_a_key_that_cannot_be_set_or_removed_is_told() -> None:
    assert only_problem("~trainer.lr").assignment == "~trainer.lr"
    assert only_problem("sampler.fan_outs.x=1").assignment == "sampler.fan_outs.x=1"


@pytest.mark.parametrize("path", ["~/data", "/a b/c", "/x=1/y", "/data(1)"])
def test_a_path_needs_no_quotes(path: str) -> None:
    root = compose_config([f"dataset.root={path}"]).dataset.root
    assert root == str(Path(path).expanduser())


def test_a_value_may_refer_to_another_key() -> None:
    typed = ["trainer.epochs=7", "trainer.scheduler_step=${trainer.epochs}"]
    assert compose_config(typed).trainer.scheduler_step == 7


def test_mistakes_of_every_kind_come_together() -> None:
    typed = [
        "dataset=coraa",
        "model.heads=3",
        "trainer.epoch=3",
        "trainer.lr=0.1,0.2",
        "trainer.batch_size=${nowhere}",
        "sampler.fan_outs=[${nowhere},3]",
        "trainer.gpus=99",
        "cora",
        "trainer.seed=[1",
        "datset.root=x",
    ]
    found = problems_of("model=gat", *typed)
    assert sorted(problem.assignment for problem in found) == sorted(typed)


def test_values_beside_a_wrong_option_are_judged_and_keys_are_not() -> None:
    found = problems_of(
        "model=gta", "model.heads=3", "model.dropout=2", "dataset=cor", "dataset.x=1"
    )
    assert {one.assignment for one in found} == {"model=gta", "model.dropout=2", "dataset=cor"}


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("model.name=gat", "write model=gat"),
        ("cora", "did you mean dataset=cora?"),
        ("sampler.fan_outs=25,10", "a list is written [a,b]"),
        ("trainer..lr=1", "None"),
        ("trainer.lr@model=1", "None"),
    ],
)
def test_a_mistake_in_form_says_what_to_write(override: str, hint: str) -> None:
    assert hint in str(only_problem(override).hint)


@pytest.mark.parametrize("name", ["writes", "author/writes/paper"])
def test_fan_outs_by_edge_type_take_the_place_of_a_list(name: str) -> None:
    override = f"sampler.fan_outs={{default:[10,5],{name}:[20,5]}}"
    config = compose_config(["model=rgcn", override], for_here=False)
    assert config.sampler.fan_outs == {"default": (10, 5), name: (20, 5)}
    both = ["model=rgcn", override, "sampler.fan_outs=[3,4]"]
    assert compose_config(both, for_here=False).sampler.fan_outs == (3, 4)
    again = ["model=rgcn", override, "sampler.fan_outs={default:[3,4]}"]
    assert compose_config(again, for_here=False).sampler.fan_outs == {"default": (3, 4)}


def test_a_file_of_the_users_may_have_fan_outs_by_edge_type(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: rgcn\nsampler:\n  fan_outs: {default: [10, 5], a/b/c: [20, 5]}\n")
    config = compose_config([str(file)], for_here=False)
    assert config.sampler.fan_outs == {"default": (10, 5), "a/b/c": (20, 5)}


@pytest.mark.parametrize("override", ["model._target_=os.system", "model={_target_:os.system}"])
def test_a_configuration_names_no_callable(override: str) -> None:
    assert only_problem(override).expected == "no such key"


@pytest.fixture
def own_conf(tmp_path: Path) -> Path:
    folder = tmp_path / "my conf, mine"
    (folder / "experiment").mkdir(parents=True)
    text = "# @package _global_\ndefaults:\n  - override /model: mlp\ntrainer:\n  lr: 0.5\n"
    (folder / "experiment" / "mine.yaml").write_text(text)
    return folder


def test_the_users_own_files_are_options_too(own_conf: Path) -> None:
    config = compose_config(["experiment=mine"], [own_conf])
    assert (config.model.name, config.trainer.lr) == ("mlp", 0.5)
    assert "mine" in config_groups([own_conf])["experiment"]


def test_a_mistake_in_the_users_own_file_is_told(own_conf: Path) -> None:
    file = own_conf / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\ntrainer:\n  lrr: 0.5\n")
    (problem,) = problems_of("experiment=mine", config_dirs=(own_conf,))
    assert problem.hint == "did you mean trainer.lr?"
    file.write_text("# @package _global_\ndefaults:\n  - override /modl: mlp\n")
    (problem,) = problems_of("experiment=mine", config_dirs=(own_conf,))
    assert "modl" in problem.expected
    file.write_text("a: [")
    (problem,) = problems_of("experiment=mine", config_dirs=(own_conf,))
    assert "a YAML file" in problem.expected
    assert str(file) == problem.value


def test_a_folder_of_files_must_be_there_and_take_no_shipped_name(own_conf: Path) -> None:
    (problem,) = problems_of(config_dirs=(own_conf / "none",))
    assert problem.key == "--config-dir"
    (own_conf / "model").mkdir()
    (own_conf / "model" / "gat.yaml").touch()
    (problem,) = problems_of(config_dirs=(own_conf,))
    assert problem.hint == "rename gat.yaml"


def test_a_value_that_must_be_given_is_missed(own_conf: Path) -> None:
    (own_conf / "model").mkdir()
    (own_conf / "model" / "mine.yaml").write_text("name: sage\nhidden_channels: ???\n")
    (problem,) = problems_of("model=mine", config_dirs=(own_conf,))
    assert problem.assignment == "model.hidden_channels=???"
    compose_config(["model=mine", "model.hidden_channels=8"], [own_conf])


def test_a_file_may_choose_options(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("dataset: cora\nmodel: {hidden_channels: 8}\n")
    expected = compose_config(["dataset=cora", "model.hidden_channels=8"])
    assert compose_config([str(file)]) == expected
    other = compose_config([str(file), "dataset=pubmed", "model.hidden_channels=4"])
    assert other == compose_config(["dataset=pubmed", "model.hidden_channels=4"])


def test_a_file_may_choose_an_experiment_and_change_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "experiment: cora_gcn\nlogger: [csv]\ndataset: {root: raw}\ntrainer: {epochs: 3}\n"
    )
    typed = ["experiment=cora_gcn", "logger=[csv]", "dataset.root=raw", "trainer.epochs=3"]
    assert compose_config([str(file)]) == compose_config(typed)


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("dataset: corra\ntrainer: {lr: 0.1}\n", "dataset", "did you mean cora?"),
        ("defaults: [base]\n", "defaults", "write `dataset: cora`"),
        ("dataset: cora\ntrainer: {epoch: 1}\n", "trainer.epoch", "trainer.epochs"),
        ("logger:\n", "logger", None),
        ("trainer: {'a b': 1}\n", "trainer.a b", None),
        ("trainer: {lr=5: 1}\n", "trainer.lr=5", None),
    ],
)
def test_mistakes_in_a_file_are_told(text: str, key: str, hint: str | None, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    (problem,) = problems_of(str(file))
    assert problem.key == key
    assert (hint or "") in (problem.hint or "")


@pytest.mark.parametrize("before", ["", "dataset: cora\n"])
def test_the_keys_of_a_file_stay_set_whatever_option_is_chosen(before: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"{before}model: {{hidden_channels: 8, dropout: 0.1}}\nsampler: {{fan_outs: [3, 3]}}\n"
        "evaluation: {memory_limit: 3}\nrun: {name: mine}\nlogger: {wandb: {project: p}}\n"
    )
    options = ["model=hgt", "sampler=neighbor", "evaluation=sampled", "logger=[wandb,csv]"]
    typed = [*options, "model.dropout=0.3"]
    keys = ["model.hidden_channels=8", "sampler.fan_outs=[3,3]", "evaluation.memory_limit=3"]
    keys += ["run.name=mine", "logger.wandb.project=p"]
    cora = ["dataset=cora"] if before.startswith("dataset") else []
    expected = compose_config([*cora, *typed, *keys], for_here=False)
    assert compose_config([str(file), *typed], for_here=False) == expected


def test_a_key_that_the_chosen_option_does_not_have_is_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("trainer: {epochs: 3}\nmodel:\n  hidden_channels: 8\n  heads: 4\n")
    assert compose_config([str(file), "model=gat"]).model.heads == 4  # type: ignore[attr-defined]
    assert only_problem(str(file), "model=gcn").key == "model.heads"


@pytest.mark.parametrize(
    ("option", "is_other"),
    [
        ("model=sage", True),
        ("logger=csv", True),
        ("dataset=cora", True),
        ("model=gat", False),
        ("dataset=synthetic", False),
    ],
)
def test_a_section_that_names_another_option_gives_way(
    option: str, is_other: bool, tmp_path: Path
) -> None:
    whole = ["model=gat", "model.heads=4", "trainer.epochs=7", "logger=[wandb]", "run.name=x"]
    begun = compose_config(whole, for_here=False)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(begun.to_dict()))
    config = compose_config([str(file), option], for_here=False)
    group = option.partition("=")[0]
    alone = compose_config([option], for_here=False) if is_other else begun
    chosen = getattr(alone, group)
    assert config == begun.model_copy(update={group: chosen, "run": config.run})
    assert config.run.name is None


def test_hydras_own_keys_are_left_to_hydra() -> None:
    typed = ["hydra.run.dir=x", "hydra/launcher=joblib", "hydra.nothing=1"]
    assert compose_config(typed) == Config()


@pytest.mark.parametrize(
    ("text", "expects"),
    [
        ("dataset: {nam: cora}", "did you mean dataset.name"),
        ("[1, 2]", "there are no keys in it"),
        ("1: {a: 2}", "no such key"),
        ("{dataset: cora, true: x}", "no such key"),
        ("a: [", "one configuration that can be read"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    text: str | None, expects: str, tmp_path: Path
) -> None:
    file = tmp_path / "best.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=expects):
        compose_config([str(file)])


def test_a_few_lines_of_yaml_that_stand_for_more_than_memory_holds_are_refused(
    own_conf: Path,
) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    (own_conf / "experiment" / "mine.yaml").write_text("\n".join(lines))
    (problem,) = problems_of("experiment=mine", config_dirs=(own_conf,))
    assert "more than 100,000 values" in problem.expected


def test_one_file_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    file.write_text("{}")
    problem = only_problem(str(file), str(tmp_path / "other.yaml"))
    assert problem.expected.startswith("one configuration")
