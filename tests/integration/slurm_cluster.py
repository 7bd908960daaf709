"""A real Slurm of one node on loopback, its own user everywhere: what `make slurm` unpacks."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cachetier.testing.s3_endpoint import free_ports
from tests.integration.fallbacks import until

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
UNPACKED = Path(sys.prefix) / "slurm"
LIBRARIES = [*UNPACKED.glob("**/slurm-wlm"), *UNPACKED.glob("**/x86_64-linux-gnu"),
             *UNPACKED.glob("**/aarch64-linux-gnu")]  # fmt: skip
PROGRAMS = [UNPACKED / "usr" / "bin", UNPACKED / "usr" / "sbin"]
STOP_SECONDS = 60.0

_PATH = os.pathsep.join(map(str, [*PROGRAMS, os.environ.get("PATH", ""), "/usr/sbin"]))
_WHY = ""
if not shutil.which("slurmctld-wlm", path=_PATH):
    _WHY = "needs Slurm: `make slurm` gets it on Debian and its kin"
elif os.geteuid() != 0:
    _WHY = "needs root, as Slurm's prolog does"
needs_slurm = pytest.mark.skipif(bool(_WHY), reason=_WHY)

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={control_port}
SlurmdPort={node_port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
KillWait=1
ReturnToService=2
SlurmdParameters=config_overrides
Prolog={folder}/prolog.sh
TaskProlog={folder}/task-prolog.sh
Epilog={folder}/epilog.sh
PrologFlags=Alloc
PrologEpilogTimeout=180
SchedulerParameters=nohold_on_prolog_fail,sched_interval=1,sched_min_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@dataclass
class Cluster:
    """One node that has our scripts as its own; ``configure`` says what they find."""

    folder: Path
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CACHETIER_", "SLURM"))}
        return kept | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), _PATH]),
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, LIBRARIES)),
        }

    def configure(self, **settings: str) -> None:
        """Write what is /etc/cachetier/slurm.conf on a node."""
        own = {"CACHETIER_BIN": str(Path(sys.executable).with_name("cachetier"))}
        own |= {"CACHETIER_USER": "root", "CACHETIER_UNIT": ""}
        lines = [f"{name}={value}\n" for name, value in (own | settings).items()]
        (self.folder / "cachetier.conf").write_text("".join(lines))

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout.strip()

    def submit(self, *arguments: str, **exported: str) -> str:
        """Have a job run in the folder; return its id."""
        environment = "".join(f",{name}={value}" for name, value in exported.items())
        where = (f"--chdir={self.folder}", f"--output={self.folder}/job.log")
        return self.run("sbatch", "--parsable", f"--export=ALL{environment}", *where, *arguments)

    def job(self, job: str) -> dict[str, str]:
        """Return what Slurm says of a job."""
        told = self.run("scontrol", "--oneliner", "show", "job", job)
        return dict(re.findall(r"(\w+)=(\S*)", told))

    def state(self) -> str:
        """Return the node's: drained, and not draining, once its last job is cleaned up."""
        return self.run("sinfo", "--noheader", "--format=%T")

    def start_soon(self, job: str) -> None:
        """Have a requeued job wait three seconds and not two minutes.

        Slurm tells its two lives apart by their second.
        """
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")

    def resume(self) -> None:
        self.run("scontrol", "update", f"NodeName={host()}", "State=RESUME")

    def start(self) -> None:
        control_port, node_port = free_ports(2)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        plugins = "".join(f"PluginDir={each}\n" for each in LIBRARIES if each.name == "slurm-wlm")
        text = CONFIGURATION.format(
            folder=self.folder, host=host(), control_port=control_port, node_port=node_port
        )
        (self.folder / "slurm.conf").write_text(plugins + text)
        for name in ("prolog.sh", "task-prolog.sh", "epilog.sh"):
            settings = f"export CACHETIER_SLURM_CONF={self.folder}/cachetier.conf"
            script = self.folder / name
            script.write_text(f'#!/bin/sh\n{settings}\nexec {SCRIPTS / name} "$@"\n')
            script.chmod(0o755)
        stepd = shutil.which("slurmstepd-wlm", path=_PATH)
        for command in (("slurmctld-wlm", "-D"), ("slurmd-wlm", "-D", "-d", str(stepd))):
            program = str(shutil.which(command[0], path=_PATH))
            with (self.folder / f"{command[0]}.out").open("wb") as output:
                self.daemons.append(
                    subprocess.Popen(
                        (program, *command[1:]),
                        env=self.environment,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        until(self._is_up, STOP_SECONDS)

    def _is_up(self) -> bool:
        done = subprocess.run(
            ("sinfo", "--noheader", "--format=%T"),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() == "idle"

    def stop(self) -> None:
        """End every job, then the daemons, by their own pids."""
        try:
            subprocess.run(("scancel", "--user=root"), env=self.environment, check=False)
            until(lambda: not self.run("squeue", "--noheader"), STOP_SECONDS)
        finally:
            for daemon in reversed(self.daemons):
                daemon.terminate()
                try:
                    daemon.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()


def host() -> str:
    return socket.gethostname().partition(".")[0]


@contextmanager
def cluster(folder: Path, **settings: str) -> Iterator[Cluster]:
    """Run a cluster of this machine alone until the block ends."""
    made = Cluster(folder)
    made.configure(**settings)
    try:
        made.start()
        yield made
    finally:
        if made.daemons:
            made.stop()
