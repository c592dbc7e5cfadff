"""Policy files from somebody who may mean harm: refused with PonnError, in little time and memory, or good."""

import json
import os
import resource
import signal
import struct
import sys
import time
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import ponn
from hostile_policies import (
    HOSTILE,
    MUTATIONS,
    array_names,
    columns_of,
    healthy,
    mutated,
    taken_apart,
    try_file,
    with_header,
    zipped,
)
from ponn.log.eligibility import Eligibility
from ponn.log.rules import parse_rule
from ponn.policy.models import LinearRewards
from ponn.policy.policy import JSON_NAME, WEIGHTS_NAME
from ponn.policy.schema import Fields, Items, Maybe, Named, Number, OneOf, Plain, SchemaError, Text, Truth, Whole
from ponn.serving.advice import Adviser, Ask, examples, load_adviser
from ponn.serving.openapi import described_paths
from served import made_policy

METHODS = ("ponn-b", "lr-l1", "direct-forest")
SLOW = ("bomb", "hostile_json", "large_architecture", "more_entries")  # to make, and tried apart below


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return healthy(tmp_path_factory.mktemp("healthy"), METHODS)


@pytest.fixture(scope="module")
def content(files):
    return files["ponn-b, plain"]


def test_mutated_files_are_refused_or_good(files, tmp_path):
    """A small part of benchmarks/reliability/mutated_policy_files.py, in this process."""
    path, outcomes = tmp_path / "p.ponn", Counter()
    for seed in range(200):
        path.write_bytes(mutated(files, seed, without=SLOW)[2])
        outcomes[try_file(path)] += 1
    assert outcomes["answered"] > 40
    assert outcomes["refused"] > 80


def test_every_hostile_value_everywhere_is_refused_or_good(content, tmp_path):
    """Each of the fields of a description in turn, with one hostile value after the other."""
    description, weights = taken_apart(content)
    path, number = tmp_path / "p.ponn", 0
    for place in fields_of(json.loads(description)):
        found = json.loads(description)
        holder = found
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = HOSTILE[number % len(HOSTILE)]
        number += 1
        path.write_bytes(zipped(json.dumps(found).encode(), weights))
        try_file(path)
    assert number > 150


def fields_of(value, path=()):
    """The paths of all fields, of lists the first two entries alone."""
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:2] if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from fields_of(one, (*path, key))


# Size ----------------------------------------------------------------------------------------------------


def in_limits(path, megabytes=200, seconds=5):
    """What loading says in a process that may take so much more memory and processor time than this one has."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_DATA, (held + (megabytes << 20),) * 2)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            signal.alarm(60)
            try:
                told = repr(ponn.load(path))
            except ponn.PonnError as error:
                told = f"PonnError: {error}"
            except BaseException as error:
                told = f"{type(error).__name__}: {error}"
            os.write(writing, told.encode()[:4_000])
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        return answer.read().decode() or f"ended with {status}"


def changed(content, change):
    """The file with its description changed."""
    description, weights = taken_apart(content)
    found = json.loads(description)
    change(found)
    return zipped(json.dumps(found).encode(), weights)


BOMBS = {
    "JSON of spaces": (
        lambda one, other: zipped(one + b" " * (1 << 27), other),
        "would unpack to more than 33,554,432",
    ),
    "arrays of zeros": (lambda one, other: zipped(one, other + bytes(1 << 27)), "does not end where it should"),
    "a list of lists": (lambda one, other: zipped(b"[" + b"[]," * (10 << 20) + b"0]", other), "lists and objects"),
    "deep": (lambda one, other: zipped(b"[" * (1 << 20) + b"]" * (1 << 20), other), "1,048,576 lists and objects"),
    "many numbers": (lambda one, other: zipped(b"[" + b"0," * (10 << 20) + b"0]", other), "its JSON holds 10,485"),
    "a long header": (
        lambda one, other: zipped(one, struct.pack("<Q", 1 << 40) + other),
        "takes 1,099,511,627,776 bytes",
    ),
    "a long number": (lambda one, other: zipped(b'{"format": ' + b"9" * (1 << 22) + b"}", other), "cannot be read"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_stop_before_they_go_off(content, tmp_path, name):
    make, told = BOMBS[name]
    path = tmp_path / "p.ponn"
    path.write_bytes(make(*taken_apart(content)))
    assert path.stat().st_size < 300_000
    found = in_limits(path, megabytes=400)
    assert found.startswith("PonnError")
    assert told in found


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["model"].update(hidden=[1_000_000_000]),
        lambda found: found["model"].update(hidden=[100_000, 100_000]),
        lambda found: found["model"].update(k=10**9, D=10**9),
        lambda found: found["encoding"]["features"][0].update(bins=10**9),
        lambda found: found["encoding"]["features"][0].update(bins=32_000_000),
        lambda found: found.update(actions=[str(a) for a in range(100_000)]),
        lambda found: found["companions"]["similar"].update(k=10**9),
    ],
    ids=range(7),
)
def test_a_small_file_cannot_ask_for_much(content, tmp_path, change):
    path = tmp_path / "p.ponn"
    path.write_bytes(changed(content, change))
    assert in_limits(path, megabytes=60).startswith("PonnError")


def test_sizes_in_the_directory_are_not_trusted(content, tmp_path):
    description, weights = taken_apart(content)
    found = bytearray(zipped(description + b" " * (1 << 27), weights))
    place = bytes(found).find(b"PK\1\2")
    struct.pack_into("<L", found, place + 24, 100)
    (tmp_path / "p.ponn").write_bytes(found)
    with pytest.raises(ponn.PonnError, match="would unpack to more than"):
        ponn.load(tmp_path / "p.ponn")


# The zip -------------------------------------------------------------------------------------------------


def test_what_zip_tools_write_is_read(content, tmp_path):
    """Stored, deflated, in the other order, with comments and times; not other methods."""
    parts = taken_apart(content)
    digest, path = None, tmp_path / "p.ponn"
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.comment = b"made elsewhere"
            for name, part in zip((WEIGHTS_NAME, JSON_NAME), reversed(parts), strict=True):
                with archive.open(name, "w") as file:
                    file.write(part)
        digest = digest or ponn.load(path).digest
        assert ponn.load(path).digest == digest
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path.write_bytes(zipped(*parts, method=method))
        with pytest.raises(ponn.PonnError, match="another method than deflate"):
            ponn.load(path)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda one, other: zipped(one, other, more=(("x", b""),)), "it holds .*'x'"),
        (lambda one, other: zipped(one, other, more=((JSON_NAME, one),)), "it holds 'policy.json', 'policy.json'"),
        (lambda one, other: zipped(one, other, more=(("x", b""),) * 2_000), "it holds 2,002 parts"),
        (lambda one, other: b"before" + zipped(one, other), "not where it should be"),
        (lambda one, other: b"", "no zip"),
        (lambda one, other: zipped(one.replace(b"{", b'{"format": 1,', 1), other), "names a field twice"),
        (lambda one, other: zipped(one.replace(b'"seed": 0', b'"seed": NaN'), other), "NaN, which is not a finite"),
        (lambda one, other: zipped(one.replace(b'"seed": 0', b'"seed": 1e999'), other), "1e999, which is not a finite"),
        (lambda one, other: zipped(one.replace(b"ponn-b", b"\\ud800"), other), "method is .*expected a text"),
        (lambda one, other: zipped(one.decode().encode("utf-16"), other), "cannot be read"),
    ],
    ids=range(10),
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_is_no_policy_file_says_why(content, tmp_path, make, told):
    (tmp_path / "p.ponn").write_bytes(make(*taken_apart(content)))
    with pytest.raises(ponn.PonnError, match=f"p.ponn is not a policy file, or is damaged: .*{told}"):
        ponn.load(tmp_path / "p.ponn")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"dtype": "F16"}, "is of type F16"),
        ({"dtype": []}, "is of type"),
        ({"shape": [2**62, 2**62]}, "no shape and place"),
        ({"shape": [1] * 70}, "no shape and place"),
        ({"shape": [7]}, "its shape needs 28"),
        ({"data_offsets": [8, 4]}, "its shape needs"),
        ({"data_offsets": [4, 16]}, "does not begin where"),
    ],
    ids=range(7),
)
def test_a_header_that_lies_is_refused_before_arrays_are_made(content, tmp_path, change, told):
    description, weights = taken_apart(content)
    header, data = array_names(weights)
    header["c"] |= change
    (tmp_path / "p.ponn").write_bytes(zipped(description, with_header(header, data)))
    with pytest.raises(ponn.PonnError, match=told):
        ponn.load(tmp_path / "p.ponn")


# Numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_policy_altered_to_no_number_is_refused_wherever_it_is(files, tmp_path, value):
    """Every array of every policy; numbers so large that sums of them would be none are refused as well."""
    from safetensors.numpy import load, save

    path = tmp_path / "p.ponn"
    for content in files.values():
        description, weights = taken_apart(content)
        for name, array in load(weights).items():
            if array.dtype.kind != "f" or (value == 3e38 and name.endswith("threshold")):
                continue
            one = array.copy()
            one.flat[len(one.flat) // 2] = value
            path.write_bytes(zipped(description, save({**load(weights), name: one})))
            with pytest.raises(ponn.PonnError):
                ponn.load(path)


def test_weights_that_are_large_but_bounded_answer_with_numbers():
    policy = made_policy()
    arrays = {name: one * np.float32(1e5) for name, one in policy.model.arrays.items()}
    wide = replace(policy, model=type(policy.model).build(policy.model.description, arrays))
    rows = pa.table(columns_of(wide, examples(wide.encoding.features)))
    assert np.isfinite(wide.predict_proba(rows)).all()
    with pytest.raises(ponn.PonnError, match="so large that their sums"):
        LinearRewards.build({}, {"W": np.full((3, 2), 1e300), "c": np.zeros(2)})


# The schema ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (Truth(), [True], [1, None, "true"]),
        (Whole(0, 9), [0, 9], [-1, 10, True, 1.0, None, "1", 2**70]),
        (Number(0, 1), [0, 1, 0.5], [1.1, True, float("nan"), 10**400, None, "0"]),
        (Number(), [-1e308, 0], [float("inf"), float("nan"), 10**30]),
        (Text(3), ["", "abc"], ["abcd", "\ud800", None, 1, []]),
        (OneOf(("a", "b")), ["a"], ["c", None, [], 1]),
        (Maybe(Truth()), [None, True], [1]),
        (Items(Truth(), 1, 2), [[True], [True, False]], [[], [True] * 3, [1], (True,), None, {}]),
        (Named(Whole()), [{}, {"a": 1}], [{"a": None}, {"\ud800": 1}, [], None]),
        (Plain(), [None, {"a": [1.5, "x", True]}], [float("nan"), {"a": ["\ud800"]}, 2**70]),
        (Fields({"a": Truth()}), [{"a": True}, {"a": True, "b": 1}], [{}, {"a": 1}, [], {"a": True, "b": 2**70}]),
        (Fields({}, {"a": Truth()}, closed=True), [{}, {"a": True}], [{"b": 1}, {"a": 2}]),
    ],
)
def test_a_schema_takes_what_it_declares_and_nothing_else(schema, good, bad):
    for value in good:
        schema.check(value, "it")
    for value in bad:
        with pytest.raises(SchemaError, match="it"):
            schema.check(value, "it")


def test_a_rule_of_many_digits_is_read_in_no_time():
    """It took time that grew with the square of their number: 10,000 digits 0.4 seconds."""
    start = time.process_time()
    for _ in range(20):
        with pytest.raises(ponn.PonnError):
            parse_rule(f"a if b < {'1' * 9_900}x")
    assert time.process_time() - start < 1


# Policies that say what is eligible ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eligibility", "field", "value"),
    [
        (Eligibility("open"), "open", "operate|pill|wait"),
        (Eligibility(None, ("operate if stage >= 3",)), "stage", 2.0),
        (Eligibility(None, ("operate if stage missing",)), "stage", "other"),
        (Eligibility(None, ("operate if frail == true", "pill if frail == false")), "frail", None),
        (Eligibility(None, ("operate if history == 'bad'", "pill if age >= 70")), "history", "other"),
        (Eligibility("open", ("operate if history == 'bad'",)), "history", "other"),
    ],
    ids=range(6),
)
def test_a_healthy_policy_with_rules_is_served(tmp_path, eligibility, field, value):
    replace(made_policy(), eligibility=eligibility).save(tmp_path / "p.ponn")
    adviser = load_adviser(tmp_path / "p.ponn")
    told = adviser.about
    assert field in {one["name"] for one in told["eligibility"]["fields"]}
    assert [row[field] for row in told["examples"]] == [value] * 3
    found = adviser.advise([adviser.check(Ask(told["examples"], reasons=True))])[0].recommendations
    assert all(one["reasons"]["text"] for one in found)
    recommend = described_paths(told, False)["/recommend"]["post"]["requestBody"]["content"]["application/json"]
    assert recommend["example"] == {"row": told["examples"][0]}
    assert field in recommend["schema"]["properties"]["row"]["properties"]


def test_examples_in_which_nothing_could_be_done_are_left_out(tmp_path):
    """Their values need not have come together in training; a policy without any is served all the same."""
    rules = ("operate if age >= 10", "pill if age >= 10", "wait if dose >= 4")
    replace(made_policy(), eligibility=Eligibility(None, rules)).save(tmp_path / "p.ponn")
    assert len(load_adviser(tmp_path / "p.ponn").about["examples"]) == 2
    replace(made_policy(), eligibility=Eligibility(None, (*rules[:2], "wait if dose >= 0"))).save(tmp_path / "p.ponn")
    adviser = load_adviser(tmp_path / "p.ponn")
    assert adviser.about["examples"] == []
    assert "example" not in described_paths(adviser.about, False)["/recommend"]["post"]["requestBody"]["content"]


def test_labels_that_hold_the_separator_leave_the_form_nothing_but_all():
    policy = replace(made_policy(labels=("a|b", "c", "d")), eligibility=Eligibility("open"))
    (field,) = Adviser(policy).about["eligibility"]["fields"]
    assert field["levels"] == []
    assert [row["open"] for row in Adviser(policy).about["examples"]] == [None] * 3


def test_rules_about_nobody_are_refused(tmp_path):
    replace(made_policy(), eligibility=Eligibility(None, ("cure if age > 3",))).save(tmp_path / "p.ponn")
    with pytest.raises(ponn.PonnError, match="about 'cure'; the actions are"):
        ponn.load(tmp_path / "p.ponn")


def test_every_mutation_has_a_name():
    assert len(MUTATIONS) >= 15
    assert set(SLOW) < set(MUTATIONS)
