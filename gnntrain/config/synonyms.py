"""Keys as other tools call them, and those that are not there yet."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES: Mapping[str, tuple[str, ...]] = {
    "task.target": ("target_ntype", "target_node_type", "target_type", "predict_ntype"),
    "trainer.lr": ("learning_rate", "learningrate", "base_lr"),
    "trainer.epochs": ("num_epochs", "n_epochs", "max_epochs"),
    "trainer.weight_decay": ("wd", "l2", "weightdecay"),
    "trainer.optimizer": ("optim", "optimiser"),
    "trainer.scheduler": ("lr_scheduler", "lr_schedule"),
    "trainer.clip_norm": ("grad_clip", "clip_grad", "gradient_clip_val", "max_grad_norm"),
    "trainer.precision": ("amp", "fp16", "bf16", "mixed_precision", "dtype"),
    "trainer.device": ("device", "accelerator", "device_type"),
    "trainer.gpus": ("devices", "cuda", "gpu", "num_gpus", "n_gpus"),
    "trainer.seed": ("random_seed", "random_state"),
    "trainer.batch_size": ("batch", "batchsize", "bs", "train_batch_size"),
    "trainer.patience": ("early_stopping", "early_stop", "early_stopping_patience"),
    "trainer.log_every": ("log_interval", "log_freq", "log_every_n_steps", "log_steps"),
    "trainer.eval_every": ("eval_interval", "eval_freq", "check_val_every_n_epoch", "eval_steps"),
    "trainer.init_from": ("pretrained", "ckpt_path", "checkpoint_path", "load_from"),
    "trainer.class_weights": ("class_weight", "pos_weight"),
    "sampler.fan_outs": ("num_neighbors", "num_neighbours", "fanout", "fanouts", "fan_out"),
    "sampler.threads": ("num_workers", "workers"),
    "model.hidden_channels": ("hidden_dim", "hidden_size", "hidden", "num_hidden", "n_hidden"),
    "model.num_layers": ("n_layers", "layers", "depth"),
    "model.heads": ("num_heads", "n_heads", "nheads"),
    "model.dropout": ("drop_rate", "dropout_rate", "dropout_prob"),
    "distributed.num_processes": ("world_size", "nproc_per_node", "num_procs", "nproc"),
    "run.dir": ("output_dir", "out_dir", "save_dir", "log_dir", "logdir"),
    "run.name": ("run_name", "experiment_name", "exp_name"),
    "sweep.jobs": ("n_jobs", "hydra.launcher.n_jobs"),
}
_NOT_YET = (
    *("task.type=edge_classification", "task.type=edge_regression", "task.type=link_prediction"),
    *("task.type=graph_classification", "sampler.time_attr", "serve"),
)
KEYS = {name: key for key, names in _NAMES.items() for name in names}


def synonym(key: str) -> str | None:
    """What gnntrain calls a key of another tool; None where it is not known.

    Args:
        key: As typed: dotted or, in another section than ours or in none, its last part.
    """
    return KEYS.get(key.lower().replace("-", "_"))


def not_yet(typed: str) -> str | None:
    """A hint at a key, a value or a command that one would guess and that is not there yet."""
    found = any(typed == name or typed.startswith((f"{name}.", f"{name}=")) for name in _NOT_YET)
    return "not supported yet: docs/faq.md says what is" if found else None
