"""Healthy policies of every kind, and mutations of their files: what tests and the reliability benchmark share."""

import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import ponn
from ponn.policy.policy import JSON_NAME, WEIGHTS_NAME
from quick import quick
from served import cases

RULES = ("operate if seen_before == 'twice' and weight >= 90", "pill if allergic == true")
PLAIN, RULED, LABELLED = "plain", "by rules", "by column and labels of numbers"


def logs() -> dict[str, ponn.Log]:
    """Logs with numbers, dates, truth values and texts; rules look at columns that are no features."""
    rng = np.random.default_rng(26)
    n = 300
    table = cases(n, 1).append_column("cost", pa.array(rng.random(n).round(3)))
    taken = rng.choice(["wait", "pill", "operate"], n)
    beside = {
        "did": taken.tolist(),
        "seen_before": np.where(taken == "operate", "once", rng.choice(["once", "twice"], n)).tolist(),
        "weight": rng.normal(80, 12, n).round(1).tolist(),
        "allergic": np.where(taken == "pill", False, rng.random(n) < 0.3).tolist(),
    }
    names = tuple(table.column_names[:-1])
    number = {"wait": 1, "pill": 2, "operate": 3}
    free = [f"1|{number[one]}" if rng.random() < 0.5 else None for one in taken]
    whole = table.append_column("did", pa.array([number[one] for one in taken])).append_column("free", pa.array(free))
    for name, values in beside.items():
        table = table.append_column(name, pa.array(values))
    asked: dict[str, Any] = {"action": "did", "reward": "cost", "features": names}
    return {
        PLAIN: ponn.read_log(table, **asked),
        RULED: ponn.read_log(table, **asked, rules=RULES),
        LABELLED: ponn.read_log(whole, **asked, eligible="free", minimize=True),
    }


def healthy(folder: Path, methods: tuple[str, ...]) -> dict[str, bytes]:
    """Policy files by name, one of each method, their logs in turn."""
    some = list(logs().items())
    found = {}
    for number, method in enumerate(methods):
        kind, log = some[number % len(some)]
        settings = quick(method, trees=5, epochs=3)
        if method == "ponn-dr":
            settings = {"epochs": 2, "folds": 2, "hidden": (4,), "trees": 5}
        ponn.learn(log, method, **settings).save(folder / "made.ponn")
        found[f"{method}, {kind}"] = (folder / "made.ponn").read_bytes()
    return found


# Mutations -----------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """A policy file taken apart."""

    description: bytes
    weights: bytes


def taken_apart(content: bytes) -> Parts:
    """The parts of a healthy file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return Parts(archive.read(JSON_NAME), archive.read(WEIGHTS_NAME))


def zipped(
    description: bytes, weights: bytes, method: int = zipfile.ZIP_DEFLATED, more: tuple[tuple[str, bytes], ...] = ()
) -> bytes:
    """A file of parts."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, part in ((JSON_NAME, description), (WEIGHTS_NAME, weights), *more):
            archive.writestr(name, part)
    return out.getvalue()


HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 1.5, -0.0, 1e308, -1e308, 1e-320, 10**9, 2**31, 2**53, 2**63, 10**30, 10**400),
    *(float("nan"), float("inf"), -float("inf"), "", "x", "NaN", "|", "\ud800", "\0", "é" * 300, "a if b > 1", "=1+1"),
    *([], [[]], [None], [0] * 9, ["a", "a"], {}, {"kind": "network"}, {"a": {"b": []}}, "9" * 5_000),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values in a description."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """What a path leads to."""
    for key in path:
        value = value[key]
    return value


Mutation = Callable[[bytes, bytes, random.Random], bytes]  # of a healthy file, given another one


def flip_bytes(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """Some bytes become others."""
    found = bytearray(content)
    for _number in range(rng.choice((1, 1, 2, 8, 64))):
        found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


def cut(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """The end, the beginning or a piece in the middle is lost, or something is added."""
    start, stop = sorted(rng.sample(range(len(content)), 2))
    pieces = (content[:start], content[start:], content[:start] + content[stop:], content + content[start:stop])
    return rng.choice(pieces)


def flip_directory(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """The fields of the zip: methods, flags, sizes, places, checksums, names."""
    found = bytearray(content)
    heads = [place for sign in (b"PK\1\2", b"PK\3\4", b"PK\5\6") for place in places_of(content, sign)]
    for _number in range(rng.choice((1, 1, 2, 3))):
        place = rng.choice(heads) + rng.randrange(4, 46)
        width = rng.choice((1, 2, 4))
        value = rng.choice((0, 1, 8, 12, 14, 0xFF, 0x7F, rng.randrange(256))).to_bytes(1, "little") * width
        found[place : place + width] = value
    return bytes(found[: len(content)])


def places_of(content: bytes, sign: bytes) -> list[int]:
    """Where a sign stands."""
    found, place = [], content.find(sign)
    while place >= 0:
        found.append(place)
        place = content.find(sign, place + 1)
    return found


def inner_bytes(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """Bytes of a part are changed before it is packed, so that checksums are right."""
    parts = [bytearray(one) for one in taken_apart(content)]
    part = parts[rng.randrange(2)]
    for _number in range(rng.choice((1, 2, 8))):
        part[rng.randrange(len(part))] = rng.randrange(256)
    return zipped(bytes(parts[0]), bytes(parts[1]))


def other_value(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """Values of the description become hostile ones."""
    description, weights = taken_apart(content)
    found = json.loads(description)
    for _number in range(rng.choice((1, 1, 1, 2, 4))):
        path = rng.choice(list(places(found)))
        at(found, path[:-1])[path[-1]] = deepcopy(rng.choice(HOSTILE))
    return zipped(json.dumps(found).encode(), weights)


def other_number(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """A number of the description becomes another one, not always an impossible one."""
    description, weights = taken_apart(content)
    found = json.loads(description)
    numbers = [path for path in places(found) if type(at(found, path)) in (int, float)]
    for _number in range(rng.choice((1, 2, 3))):
        path = rng.choice(numbers)
        given = at(found, path)
        changed = (-given, given + 1, given - 1, given * 1e6, given * 1e-6, given * 1e200, float(given), int(given))
        at(found, path[:-1])[path[-1]] = rng.choice((*changed, rng.randrange(100), 10 ** rng.randrange(18)))
    return zipped(json.dumps(found).encode(), weights)


def lost_key(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """Fields and entries are lost, doubled or in another order."""
    description, weights = taken_apart(content)
    found = json.loads(description)
    for _number in range(rng.choice((1, 1, 2))):
        *above, key = rng.choice(list(places(found)))
        holder = at(found, tuple(above))
        one = holder.pop(key)
        if isinstance(holder, list) and rng.random() < 0.5:
            holder[rng.randrange(len(holder) + 1) :] = [one, one]
    return zipped(json.dumps(found).encode(), weights)


def swapped_values(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """Two values of the description change places."""
    description, weights = taken_apart(content)
    found = json.loads(description)
    one, other = (rng.choice(list(places(found))) for _number in range(2))
    values = json.loads(json.dumps([at(found, one), at(found, other)]))
    at(found, one[:-1])[one[-1]] = values[1]
    if other[: len(one)] != one:  # else it is gone
        at(found, other[:-1])[other[-1]] = values[0]
    return zipped(json.dumps(found).encode(), weights)


def hostile_json(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """JSON too deep, too large, with tokens that are no numbers, names twice, other encodings."""
    description, weights = taken_apart(content)
    found = json.loads(description)
    path = rng.choice(list(places(found)))
    at(found, path[:-1])[path[-1]] = "@@"
    deep, many = rng.choice((10, 100, 1_000, 100_000, 3_000_000)), rng.choice((1_000, 300_000, 9_000_000))
    put = rng.choice(
        (
            "[" * deep + "]" * deep,
            '{"a":' * deep + "1" + "}" * deep,
            "[" + "[]," * many + "[]]",
            "[" + "{}," * many + "0]",
            "[" + "0," * many + "0]",
            '["' + "a" * many + '"]',
            "[" + '"\\"",' * many + "0]",
            *("1e999", "-1e999", "NaN", "Infinity", "9" * 5_000, '{"a":1,"a":2}', "\\u0000", '"\\ud800"', "1 2", ""),
        )
    )
    text = json.dumps(found).replace('"@@"', put)
    encoding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig"))
    return zipped(text.encode(encoding), weights)


def array_names(weights: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of the arrays and what follows."""
    (length,) = struct.unpack("<Q", weights[:8])
    return json.loads(weights[8 : 8 + length]), weights[8 + length :]


def with_header(header: Any, data: bytes, length: int | None = None) -> bytes:
    """Arrays with another header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def lying_header(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """The header of the arrays says something else than is there."""
    description, weights = taken_apart(content)
    header, data = array_names(weights)
    name = rng.choice([one for one in header if one != "__metadata__"])
    kind = rng.randrange(7)
    length = None
    if kind == 0:
        header[name]["shape"] = rng.choice(([], [0], [2**62, 2**62], [10**9], [1] * 70, [-1], None, [1.5], ["a"]))
    elif kind == 1:
        header[name]["dtype"] = rng.choice(("F16", "BF16", "F64", "I64", "U8", "BOOL", "X", None, 3, [], "F8_E4M3"))
    elif kind == 2:
        header[name]["data_offsets"] = rng.choice(([0, 0], [0, 2**63], [5, 2], [-4, 0], [0], None, [0, 10**12]))
    elif kind == 3:
        header[rng.choice(("x", "W9", "similar.x", "other.W", ".W", "reward.similar.W"))] = header.pop(name)
    elif kind == 4:
        length = rng.choice((0, 7, 2**63, 2**64 - 1, 2**32, len(data), 100_000_000))
    elif kind == 5:
        one, other = header[name], header[rng.choice([one for one in header if one != "__metadata__"])]
        one["data_offsets"], other["data_offsets"] = other["data_offsets"], one["data_offsets"]
    else:
        header = rng.choice(([], None, 3, {}, {name: header[name]}, {"a": {}}))
    return zipped(description, with_header(header, data, length))


def other_arrays(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """Values, types and shapes of arrays are others, with a header that is right."""
    from safetensors.numpy import load, save

    description, weights = taken_apart(content)
    arrays = {name: one.copy() for name, one in load(weights).items()}
    for _number in range(rng.choice((1, 1, 2, 5))):
        name = rng.choice(sorted(arrays))
        arrays[name] = other_array(arrays[name], rng)
    return zipped(description, save({name: np.ascontiguousarray(one) for name, one in arrays.items()}))


def other_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """An array that is not what it was."""
    array = np.atleast_1d(array)  # an earlier change may have left a single number
    if array.size and rng.random() < 0.6:
        some = np.array([rng.randrange(array.size) for _number in range(rng.choice((1, 3, array.size)))])
        values = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 1e20, 1e6, 0, -1, 1e-44, 2**31 - 1, rng.random())
        with np.errstate(all="ignore"):
            array.flat[some] = np.array(rng.choice(values)).astype(array.dtype)
        return array
    kinds = (np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_)
    made = (
        lambda: array[:0],
        lambda: array[:-1],
        lambda: array.ravel(),
        lambda: array[None],
        lambda: array.T,
        lambda: np.concatenate([array, array]),
        lambda: np.zeros((0, *array.shape), array.dtype),
        lambda: np.array(1, array.dtype),
        lambda: array[::-1],
        lambda: array.astype(rng.choice(kinds)),
    )
    with np.errstate(all="ignore"):
        return np.asarray(rng.choice(made)())


def large_architecture(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """Models, features and actions that say they are enormous, with arrays that fit or do not, bombs included."""
    description, weights = taken_apart(content)
    found = json.loads(description)
    size = rng.choice((10**4, 10**6, 10**8, 10**10, 2**62))
    model = rng.choice([found["model"], *found["companions"].values()])
    kind = rng.randrange(6)
    if kind == 0:
        model.update(hidden=[size] * rng.choice((1, 2, 60)))
    elif kind == 1:
        model.update({rng.choice(("k", "D", "actions")): size})
    elif kind == 2:
        rng.choice(found["encoding"]["features"]).update(bins=size)
    elif kind == 3:
        found["actions"] = [str(a) for a in range(min(size, 10**6))]
    elif kind == 4:
        found["selected"] = [[True] * min(size, 10**6)]
    else:
        return deep_bomb(found, rng)
    return zipped(json.dumps(found).encode(), weights)


def deep_bomb(found: dict[str, Any], rng: random.Random) -> bytes:
    """A network of zeros that needs what its description says, which packs to nothing."""
    k, D = len(found["actions"]), found["companions"]["logging"]["D"]
    units = rng.choice((1_000, 30_000, 100_000, 1_000_000))
    found["model"] = {"kind": "network", "k": k, "D": D, "hidden": [units], "activation": rng.choice(("relu", "silu"))}
    shapes = {"W1": (D, k * units), "b1": (units,), "w": (units,), "c": (k,)}
    header, place = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [place, place + size]}
        place += size
    found["companions"] = {}
    return zipped(json.dumps(found).encode(), with_header(header, bytes(min(place, 300_000_000))))


def bomb(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """A part that unpacks to much more than it says, or than anybody needs."""
    description, weights = taken_apart(content)
    size = rng.choice((1 << 20, 1 << 26, 1 << 28))
    much = rng.choice((b" ", b"[", b"0", b"\0")) * size
    described, weighed = rng.choice(((description + much, weights), (description, weights + much), (much, much)))
    found = bytearray(zipped(described, weighed))
    if rng.random() < 0.5:  # it says that it is small
        for place in places_of(bytes(found), b"PK\1\2"):
            struct.pack_into("<L", found, place + 24, 1_000)
    return bytes(found)


def other_packing(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """Other methods of compression, which are no part of the format, and raw deflate with nonsense in it."""
    parts = taken_apart(content)
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    found = bytearray(zipped(*parts, method=method))
    if method == zipfile.ZIP_STORED and rng.random() < 0.5:  # stored bytes said to be packed
        for sign, place in ((b"PK\1\2", 10), (b"PK\3\4", 8)):
            for start in places_of(bytes(found), sign):
                struct.pack_into("<H", found, start + place, rng.choice((8, 9, 93, 99)))
    return bytes(found)


def more_entries(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Parts twice, others beside them, none at all, other names."""
    import warnings

    description, weights = taken_apart(content)
    names = (JSON_NAME, WEIGHTS_NAME, "../policy.json", "policy.JSON", "x/", " ", "a" * 60_000, "é")
    more = tuple(
        (rng.choice(names), rng.choice((b"", description, weights))) for _number in range(rng.choice((1, 9, 999)))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names given twice
        found = zipped(description, weights, more=more)
    return rng.choice((found, content + other, other + content, content * 2, b"PK\5\6" + bytes(18), b"PK\5\6"))


def swapped_parts(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """The arrays of another policy, its models or its features."""
    one, two = taken_apart(content), taken_apart(other)
    found, theirs = json.loads(one.description), json.loads(two.description)
    name = rng.choice(("", *found, "weights and model"))
    if not name:
        return zipped(one.description, rng.choice((two.weights, one.description, b"")))
    if name == "weights and model":
        found.update({part: theirs[part] for part in ("model", "companions")})
        return zipped(json.dumps(found).encode(), two.weights)
    found[name] = theirs[name]
    return zipped(json.dumps(found).encode(), one.weights)


def hostile_rules(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """Rules and columns that no log had."""
    description, weights = taken_apart(content)
    found = json.loads(description)
    name, action = rng.choice(("age", "town", "seen", "smoker", "nothing")), rng.choice([*found["actions"], "nobody"])
    rules = (
        f"{action} if {name} >= 1",
        f"{action} if {name} == 'a'",
        f"{action} if {name} == true",
        f"{action} if {name} missing",
        f"{action} if " + " and ".join(f"c{number} < {number}" for number in range(rng.choice((3, 300)))),
        f"{action} if {name} < " + "1" * rng.choice((10, 9_000)) + rng.choice(("", "x")),
        f"{action} if {name} in (" + ", ".join(["1"] * 2_000) + ")",
        "'" * rng.choice((3, 9_000)) + " if a > 1",
        "a" + " " * 9_000 + "if",
        "`" * 900,
    )
    some = [rng.choice(rules) for _number in range(rng.choice((1, 2, 5, 40)))]
    found["eligibility"] = {"column": rng.choice((None, None, name, "free", 3)), "rules": some, "drop": False}
    return zipped(json.dumps(found).encode(), weights)


def rubbish(content: bytes, _: bytes, rng: random.Random) -> bytes:
    """Something else altogether."""
    some = (b"", b"PK", b"\0" * 100, rng.randbytes(1_000), zlib.compress(content), b"null", b"PK\3\4" * 1_000)
    return rng.choice(some)


MUTATIONS: dict[str, Mutation] = {
    one.__name__: one
    for one in (
        *(flip_bytes, cut, flip_directory, inner_bytes, other_value, other_number, lost_key, swapped_values),
        *(hostile_json, lying_header, other_arrays, large_architecture, bomb, other_packing, more_entries),
        *(swapped_parts, hostile_rules, rubbish),
    )
}
SHARES = {
    "other_value": 4,
    "other_number": 4,
    "lost_key": 3,
    "other_arrays": 3,
    "bomb": 0.3,
    "rubbish": 0.2,
}  # others: 1


def mutated(healthy_files: dict[str, bytes], seed: int, without: tuple[str, ...] = ()) -> tuple[str, str, bytes]:
    """The mutation of this number: name of the policy, name of the mutation, the file. A number gives the same one."""
    rng = random.Random(seed)
    name, other = rng.choice(sorted(healthy_files)), rng.choice(sorted(healthy_files))
    kinds = [one for one in MUTATIONS if one not in without]
    kind = rng.choices(kinds, [SHARES.get(one, 1) for one in kinds])[0]
    return name, kind, MUTATIONS[kind](healthy_files[name], healthy_files[other], rng)


# What is done with a file --------------------------------------------------------------------------------


def try_file(path: Path) -> str:
    """Load, recommend, explain and serve; "refused" or "answered". Anything else but PonnError is for others to see."""
    from ponn.serving.advice import examples
    from ponn.serving.service import Mode, served_adviser

    try:
        policy = ponn.load(path)
    except ponn.PonnError:
        return "refused"
    try:
        rows = pa.table(columns_of(policy, examples(policy.encoding.features)))
        told = policy.recommend(
            rows,
            probabilities=True,
            reasons=True,
            eligible=np.ones((3, len(policy.actions)), bool),
            columns=("action", "probability", "runner_up", "expected_reward", "supported", "expected_low"),
        )
        check_finite(told)
        if policy.companions.get("logging"):
            check_finite(policy.recommend(rows, supported_only=True, eligible=list(policy.actions)))
    except ponn.PonnError:
        pass
    explain(policy)
    try:
        adviser = served_adviser(path, Mode())
        json.dumps(adviser.about, allow_nan=False)
    except ponn.PonnError:
        return "refused when served"
    return "answered"


def columns_of(policy: ponn.Policy, rows: list[dict[str, Any]]) -> dict[str, pa.Array]:
    """Example rows as columns, with what rules look at."""
    from ponn.policy.reasons import arrow_type
    from ponn.serving.examples import eligibility_fields

    kinds = {one.name: arrow_type(one) for one in policy.encoding.features}
    found = {name: pa.array([row[name] for row in rows]).cast(kind) for name, kind in kinds.items()}
    return found | {name: pa.nulls(3) for name in eligibility_fields(policy) if name not in found}


def explain(policy: ponn.Policy) -> None:
    """What `ponn explain` does, for people and as JSON, without printing."""
    import contextlib

    from ponn.cli.policy_commands import explained, print_policy

    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(ponn.PonnError):
        print_policy(policy)
    json.dumps(explained(policy), allow_nan=False).encode()


def check_finite(told: pa.Table) -> None:
    """No number of an answer is infinite or none."""
    for name in told.column_names:
        column = told.column(name)
        if pa.types.is_floating(column.type):
            values = np.array([one for one in column.to_pylist() if one is not None], float)
            if name != "expected_low" or not np.isnan(values).any():
                assert np.isfinite(values).all(), f"{name} holds {values.tolist()}"
