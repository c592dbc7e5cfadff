"""Several processes that train one network: launched by torchrun on this machine, or by Ray Train on a cluster.

The folder of a training holds what is to be trained, its newest state, and the result or the error. A process that is
killed takes its team with it; the launcher starts them again and they go on from the newest state, up to RESTARTS
times. Where the one who asked is killed, the same command goes on from there.
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ponn.engine.clusters import OnRay
from ponn.engine.passes import ONE_THREAD, Engine, write_kept
from ponn.errors import PonnError
from ponn.processes import own_path, warning_options
from ponn.training.checkpoint import Checkpoint
from ponn.training.loop import Candidate, Epoch, Problem, Progress, Trained, train
from ponn.training.team import Team

RESTARTS = 3
LOOKED_AT = 0.5  # seconds between looks at how far training is
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}  # torchrun's stay on this machine
TOLD = 2_000  # characters of a launcher's output in an error


@dataclass(frozen=True)
class Folder:
    """The files of one training."""

    path: Path

    @property
    def job(self) -> Path:
        """What is to be trained."""
        return self.path / "job.pickle"

    @property
    def state(self) -> Checkpoint:
        """How far it is."""
        return Checkpoint(self.path / "state.part")

    @property
    def outcome(self) -> Path:
        """The trained network, or why there is none."""
        return self.path / "outcome.pickle"


@dataclass(frozen=True)
class Trainers:
    """So many processes, where an engine runs its shards."""

    count: int
    engine: Engine
    folder: Folder

    def __call__(self, problem: Problem, candidate: Candidate, *, progress: Progress | None = None) -> Trained:
        """Train one network, as `train` does."""
        self.folder.outcome.unlink(missing_ok=True)
        content = pickle.dumps((replace(problem, trainer=None, kept=self.folder.state), candidate))
        write_kept(self.folder.job, content, "What is to be trained")
        with watched(self.folder.state, progress):
            told = self.launch()
        return outcome_of(self.folder, told)

    def launch(self) -> str:
        """Start the processes and wait for them; returns what they said."""
        if not isinstance(self.engine, OnRay):
            return by_torchrun(self.folder, self.count)
        if self.count > self.engine.processors:
            raise PonnError(
                f"{self.count} processes were asked for (--trainers), and the Ray cluster has "
                f"{self.engine.processors} processors."
            )
        return on_ray(self.folder, self.count)


def outcome_of(folder: Folder, told: str) -> Trained:
    """What the processes left."""
    try:
        found = pickle.loads(folder.outcome.read_bytes())
    except OSError as error:
        raise PonnError(
            f"The processes of Step C died {RESTARTS + 1} times. What they had done is kept: start the same command "
            f"again, with fewer of them (--trainers) if memory is short. They said: {told[-TOLD:].strip()}"
        ) from error
    if isinstance(found, PonnError):
        raise found
    assert isinstance(found, Trained)
    return found


@contextmanager
def watched(state: Checkpoint, progress: Progress | None) -> Iterator[None]:
    """Tell how far a training is that runs elsewhere."""
    over = threading.Event()

    def look() -> None:
        before = 0
        while not over.wait(LOOKED_AT):
            found = state.read() if progress else None
            if progress and found is not None and len(found.history) - 1 > before:
                before = len(found.history) - 1
                progress(before, Epoch(*found.history[-1]))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


# Launching -----------------------------------------------------------------------------------------------


def by_torchrun(folder: Folder, count: int) -> str:
    """Processes on this machine; returns what they said. They end when this process does."""
    command = [sys.executable, *warning_options(), "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(count), "--max-restarts", str(RESTARTS), "-m", "ponn.training.launch"]
    done = subprocess.Popen(
        [*command, str(folder.path)],
        env=LOOPBACK | os.environ | ONE_THREAD | own_path(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert done.stdout is not None  # stdin stays open as long as this process lives
        return done.stdout.read()
    finally:
        done.terminate()
        done.wait()
        for pipe in (done.stdin, done.stdout):
            if pipe is not None:
                pipe.close()


def on_ray(folder: Folder, count: int) -> str:
    """Processes on a Ray cluster; the folder must be reached from all its machines."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        work_on,
        train_loop_config={"folder": str(folder.path)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=count),
        run_config=RunConfig(
            name="ray", storage_path=str(folder.path), failure_config=FailureConfig(max_failures=RESTARTS)
        ),
    )
    try:
        trainer.fit()
    except Exception as error:  # Ray has many; what matters is in the folder
        return str(error)
    return ""


# In the processes ----------------------------------------------------------------------------------------


def work_on(config: dict[str, str]) -> None:
    """Train what is in the folder, as one of a team; the first of them leaves the result."""
    folder, team = Folder(Path(config["folder"])), Team.current()
    team.meet()
    if folder.outcome.exists():  # started again after an error that will not go away
        return
    problem, candidate = pickle.loads(folder.job.read_bytes())
    try:
        found: Trained | PonnError = train(problem, candidate)
    except PonnError as error:
        found = error
    if team.rank == 0 or isinstance(found, PonnError):
        write_kept(folder.outcome, pickle.dumps(found), "The trained network")


def end_with_the_starter() -> None:
    """End this process and its launcher when the one that asked is gone: its end of the standard input closes then."""
    with suppress(OSError):
        while os.read(0, 1_024):
            pass
    with suppress(OSError):
        os.kill(os.getppid(), signal.SIGTERM)  # else it would start us again
    os._exit(1)


def join_team() -> None:
    """Make the process group of the environment, once more after each restart.

    The launcher's store outlives a restart. Without a prefix of its own an attempt may find there the addresses of
    processes that are gone, and wait for them for ever.
    """
    from torch import distributed

    store, rank, size = next(distributed.rendezvous("env://"))  # type: ignore[attr-defined]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = distributed.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)


def main() -> None:
    """A process that torchrun started."""
    from torch import distributed

    threading.Thread(target=end_with_the_starter, daemon=True).start()
    join_team()
    work_on({"folder": sys.argv[1]})
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
