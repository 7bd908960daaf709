"""The verbs of the command ``cachetier``: what each does in a line, and where it is written.

A verb's module is imported when the verb is called, so that none of them slows the others down. A
verb with a space in its name belongs to a group: ``token list``.
"""

from __future__ import annotations

# The first section is the first page of help; the others are shown there by their names.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "First steps": {
        "serve": ("node:serve", "Run the service on this node."),
        "doctor": ("doctor:doctor", "Check the node and its remotes, with a fix for each problem."),
        "put": ("transfer:put", "Put a file as a shard, or a folder as a step."),
        "get": ("transfer:get", "Get a shard, or a whole step, verified."),
        "ls": ("steps:ls", "List runs, steps of a run, or shards of a step."),
        "wait": ("steps:wait", "Wait until a step, or a shard, has reached a level."),
        "status": ("status:status", "Show a node, or where a step stands and what it waits for."),
        "top": ("status:top", "Watch nodes live: exposure, rates, and steps that are stuck."),
        "fsck": ("fsck:fsck", "Check files against the catalog against the remotes; repair."),
    },
    "Checkpoints": {
        "adopt": ("transfer:adopt", "Take each step that a trainer writes as files to a folder."),
        "seal": ("steps:seal", "Say that a rank has put all its shards."),
        "flush": ("steps:flush", "Drain now, and wait until nothing is dirty."),
        "restore": ("transfer:restore", "Bring a step back to this node, or into a folder."),
        "verify": ("transfer:verify", "Read a step as a restore would, and check every byte."),
        "pin": ("steps:pin", "Pin a step to this node, unpin it, or list the pinned steps."),
        "delete": ("steps:delete", "Delete a step, here and in S3."),
    },
    "Nodes": {
        "dev": ("node:dev", "Run the service and an S3 server in one process, to try it."),
        "config": ("node:config", "Show the settings, check them, or print their schema."),
        "console": ("access:console", "Sign a browser in: print a link that works once."),
        "leave": ("steps:leave", "Take no more puts, and flush, before the node goes."),
        "forget": ("steps:forget", "Give up the steps of a node that will not return."),
        "prune": ("fsck:prune", "List data that is no longer needed, and remove it."),
        "bench": ("doctor:bench", "Measure what this node, or its remote, can do."),
    },
    "Access": {
        "whoami": ("access:whoami", "Show the caller's principal and role."),
        "token create": ("access:create", "Make a token for a principal, for HTTP."),
        "token list": ("access:list_", "List the tokens, without their secrets."),
        "token revoke": ("access:revoke", "Revoke a token."),
        "s3 env": (
            "access:env",
            "Make a key, and print what S3 clients need to write through here.",
        ),
        "s3 resolve": (
            "access:resolve",
            "Decide about an object that cannot go to the bucket by itself.",
        ),
    },
    "Planning": {
        "plan interval": ("plan:interval", "Show how often a run should save, and why."),
        "plan costs": ("plan:costs", "Estimate the costs of checkpoints before the first save."),
        "plan simulate": ("plan:simulate", "Try settings on a simulated cluster."),
    },
}
GROUPS = {
    "plan": "How often to save, what that costs, and what a cluster would do.",
    "s3": "Keys and settings for programs that speak S3 to this node.",
    "token": "Make, list and revoke the tokens of HTTP callers.",
}
# What people type who come from elsewhere.
ALSO_CALLED = {
    "check": "fsck",
    "download": "get",
    "health": "doctor",
    "info": "status",
    "list": "ls",
    "load": "get",
    "monitor": "top",
    "prefetch": "restore",
    "remove": "delete",
    "rm": "delete",
    "run": "serve",
    "save": "put",
    "start": "serve",
    "sync": "flush",
    "upload": "put",
    "warm": "restore",
    "warmup": "restore",
}
# What a verb was called before, and what does its work now; `docs/renames.md` lists them.
RENAMED = {
    "advise": "plan interval",
    "completion": "--completion",
    "config check": "config --check",
    "config schema": "config --schema",
    "config show": "config",
    "estimate": "plan costs",
    "explain": "status RUN STEP",
    "export": "get RUN STEP DEST",
    "gc": "prune",
    "import": "put SOURCE RUN STEP",
    "latest": "ls RUN --latest",
    "link": "console",
    "objbench": "bench --remote",
    "s3 keep": "s3 resolve",
    "s3 release": "s3 resolve release",
    "simulate": "plan simulate",
    "unpin": "pin --remove",
    "watch": "adopt",
}
VERBS = {name: verb for section in SECTIONS.values() for name, verb in section.items()}
