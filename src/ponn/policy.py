"""The policy: encoding, network, relevant sets and where they come from. numpy alone; no training stack, no pickle.

    symbol   meaning                          shape
    h        h(a | x), the stochastic policy  [n, k]

A policy file is a zip of `policy.json` and `weights.safetensors`. Nothing in it is executed; a file that is damaged,
too large or from a later version is refused.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.encode import CategoryFeature, Encoding, Feature, NumberFeature
from ponn.errors import PonnError, listing, one_line
from ponn.inference import Architecture, draw_actions, scores, softmax

FORMAT = 1
JSON_NAME, WEIGHTS_NAME = "policy.json", "weights.safetensors"
LARGEST = 1 << 30  # bytes a part of a policy file may have unpacked


@dataclass(frozen=True)
class PairLine:
    """What Step B found for one action and feature."""

    action: Any
    feature: str
    relevance: float
    threshold: float
    bound: float | None
    selected: bool


@dataclass(frozen=True, eq=False)
class Policy:
    """A stochastic policy h(a | x) that explains what it looks at."""

    actions: tuple[Any, ...]
    encoding: Encoding
    architecture: Architecture
    weights: Mapping[str, np.ndarray]
    selected: np.ndarray  # f_a: [k, d] bool
    relevance: tuple[PairLine, ...]  # empty where Step B was left out
    method: str
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]  # rows, seed, training, versions

    def __repr__(self) -> str:
        return f"Policy({self.method}, {len(self.actions)} actions, {len(self.encoding.features)} features)"

    def predict_proba(self, X: Any) -> np.ndarray:
        """h(a | x) for every row, columns in the order of `actions`."""
        return softmax(scores(self.weights, self.encoding.design(X), self.architecture))  # [n, k]

    def predict(self, X: Any) -> np.ndarray:
        """The recommended action per row: arg max_a h(a | x), as in Algorithm 2."""
        return np.array(self.actions)[self.predict_proba(X).argmax(axis=1)]

    def sample(self, X: Any, seed: int = 0) -> np.ndarray:
        """An action drawn from h(. | x) per row, as in section 5."""
        return np.array(self.actions)[draw_actions(self.predict_proba(X), np.random.default_rng(seed))]

    def recommend(self, X: Any, *, sample: bool = False, seed: int = 0, probabilities: bool = False) -> pa.Table:
        """One row per row of X: action, probability, runner_up, expected_reward, supported (the last two not yet).

        sample: actions are drawn from h instead of the most probable. probabilities: h as columns p_<action>.
        """
        h = self.predict_proba(X)
        n = np.arange(len(h))
        first = draw_actions(h, np.random.default_rng(seed)) if sample else h.argmax(axis=1)
        rest = h.copy()
        rest[n, first] = -1
        labels, nothing = pa.array(self.actions), pa.nulls(len(h))
        columns = {
            "action": labels.take(pa.array(first)),
            "probability": h[n, first],
            "runner_up": labels.take(pa.array(rest.argmax(axis=1))),
            "expected_reward": nothing.cast(pa.float64()),
            "supported": nothing.cast(pa.bool_()),
        }
        if probabilities:
            columns |= {f"p_{action}": h[:, a] for a, action in enumerate(self.actions)}
        return pa.table(columns)

    def sets(self) -> dict[Any, tuple[str, ...]]:
        """The features that each action looks at, by name."""
        names = np.array([one.name for one in self.encoding.features], dtype=object)
        return {action: tuple(names[mask]) for action, mask in zip(self.actions, self.selected, strict=True)}

    @property
    def digest(self) -> str:
        """A fingerprint of the weights: equal digests, equal policies on equal encodings."""
        found = hashlib.sha256()
        for name in sorted(self.weights):
            found.update(name.encode() + np.ascontiguousarray(self.weights[name]).tobytes())
        return found.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy file under a temporary name, then rename it."""
        write_policy(self, Path(path))


# The policy file -----------------------------------------------------------------------------------------


def write_policy(policy: Policy, path: Path) -> None:
    """policy.json and weights.safetensors in one zip; the same policy gives the same bytes."""
    from safetensors.numpy import save

    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    parts = {
        JSON_NAME: json.dumps(as_json(policy), indent=1, allow_nan=False).encode(),
        WEIGHTS_NAME: save({name: np.ascontiguousarray(array) for name, array in policy.weights.items()}),
    }
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in parts.items():
                archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
        temporary.replace(path)
    except OSError as error:
        raise PonnError(f"{path} could not be written: {one_line(error)}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def as_json(policy: Policy) -> dict[str, Any]:
    """Everything but the weights, in plain values."""
    return {
        "format": FORMAT,
        "actions": list(policy.actions),
        "method": policy.method,
        "settings": dict(policy.settings),
        "encoding": {
            "rows": policy.encoding.rows,
            "features": [{"type": type(one).__name__, **asdict(one)} for one in policy.encoding.features],
        },
        "architecture": asdict(policy.architecture),
        "selected": policy.selected.tolist(),
        "relevance": [asdict(one) for one in policy.relevance],
        "provenance": dict(policy.provenance),
    }


def load(path: str | os.PathLike[str]) -> Policy:
    """Read a policy file; whatever is wrong with it is told, nothing in it is executed."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as load_weights

    path = Path(path)
    try:
        description, weights = read_parts(path)
        found = json.loads(description)
        check_format(path, found)
        return build(found, load_weights(weights))
    except PonnError:
        raise
    except (OSError, zipfile.BadZipFile, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PonnError(f"{path} is not a policy file, or is damaged: {one_line(error)}.") from error


def read_parts(path: Path) -> tuple[bytes, bytes]:
    """The two parts of a policy file, if they are what they should be in kind and size."""
    if not path.is_file():
        raise PonnError(f"There is no policy file {path}.")
    with zipfile.ZipFile(path) as archive:
        sizes = {one.filename: one.file_size for one in archive.infolist()}
        if set(sizes) != {JSON_NAME, WEIGHTS_NAME}:
            raise PonnError(f"{path} is not a policy file: it holds {listing(sorted(sizes))}.")
        if max(sizes.values()) > LARGEST:
            raise PonnError(f"{path} would unpack to more than {LARGEST >> 30} GB; no policy is that large.")
        return archive.read(JSON_NAME), archive.read(WEIGHTS_NAME)


def check_format(path: Path, found: Any) -> None:
    """Only formats this version knows."""
    version = found.get("format") if isinstance(found, dict) else None
    if not isinstance(version, int) or version < 1:
        raise PonnError(f"{path} is not a policy file: it names no format.")
    if version > FORMAT:
        raise PonnError(
            f"{path} has format {version}; this ponn reads up to {FORMAT}. Install a later version of ponn."
        )


def build(found: dict[str, Any], weights: dict[str, np.ndarray]) -> Policy:
    """A policy from its parts, which must fit together."""
    shape = found["architecture"]
    architecture = Architecture(shape["k"], shape["D"], tuple(shape["hidden"]), shape["activation"])
    encoding = Encoding(tuple(map(build_feature, found["encoding"]["features"])), found["encoding"]["rows"])
    actions = tuple(found["actions"])
    selected = np.array(found["selected"], bool)
    shapes = {name: array.shape for name, array in weights.items()}
    fits = shapes == architecture.shapes and len(encoding.owner) == architecture.D and len(actions) == architecture.k
    if not fits or selected.shape != (len(actions), len(encoding.features)):
        raise PonnError("The parts of the policy file do not fit together; it is damaged.")
    if any(array.dtype != np.float32 or not np.isfinite(array).all() for array in weights.values()):
        raise PonnError("The policy file holds weights that are not finite numbers; it is damaged.")
    relevance = tuple(PairLine(**one) for one in found["relevance"])
    rest = (found["method"], found["settings"], found["provenance"])
    return Policy(actions, encoding, architecture, weights, selected, relevance, *rest)


def build_feature(found: dict[str, Any]) -> Feature:
    """A feature from its JSON."""
    kinds: dict[str, type[Feature]] = {one.__name__: one for one in (NumberFeature, CategoryFeature)}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    fields: dict[str, Any] = {name: value for name, value in values.items() if name != "type"}
    return kinds[found["type"]](**fields)
