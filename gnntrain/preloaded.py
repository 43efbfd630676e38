"""What the fork server imports: all that a rank or a trial runs (see `distributed.processes`)."""

from gnntrain import lazy_imports

lazy_imports.install()

import gnntrain.run  # noqa: E402  # after `install`
import gnntrain.worker  # noqa: E402, F401
