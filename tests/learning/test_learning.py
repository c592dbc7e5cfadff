"""Algorithm 1 end to end, the policy and its file."""

import json
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest

import ponn
from ponn.learning.algorithm import candidates, prepare
from ponn.log.eligibility import Eligibility
from ponn.methods import LAMBDA1, METHODS, RATES, search_of, settings_of
from ponn.policy.inference import ACTIVATIONS
from ponn.settings import Settings
from ponn.simulate.synthetic import synthetic
from ponn.steps.propensity import propensities
from ponn.training.objective import CRITERIA
from quick import quick

QUICK = {"hidden": (16,), "epochs": 60, "patience": 10}


@pytest.fixture(scope="module")
def world() -> ponn.World:
    return synthetic(rows=3_000, features=12, actions=3, relevant=3, effect=0.16, bias=0.7, categorical=0.3, seed=1)


@pytest.fixture(scope="module")
def policy(world) -> ponn.Policy:
    return ponn.learn(world.part("train", "valid").log, "ponn-b", seed=0, select="fdr", **QUICK)


def test_settings_list_what_exists():
    choices = {one.name: one.metadata["choices"] for one in Settings.__dataclass_fields__.values()}
    assert set(choices["activation"]) == set(ACTIVATIONS)
    assert set(choices["criterion"]) == set(CRITERIA)


def test_the_papers_methods_are_rows_of_settings():
    assert settings_of("poem").hidden == ()
    assert settings_of("poem").criterion == "ips"
    assert settings_of("poem").variance > 0
    assert settings_of("ponn-b").relevance
    assert not settings_of("ponn").relevance
    assert settings_of() == settings_of("ponn-dr")  # the default, beyond the paper
    with pytest.raises(ponn.PonnError, match="no method 'ponn-c'"):
        settings_of("ponn-c")
    with pytest.raises(ponn.PonnError, match="Did you mean 'lambda1'"):
        settings_of("ponn", lamda1=3)


def test_a_learned_policy_beats_logging_and_looks_at_the_relevant_features(world, policy):
    test = world.part("test")
    greedy = np.eye(3)[policy.predict_proba(test.log).argmax(axis=1)]
    assert test.value(greedy) > test.value(test.propensities) + 0.1
    found = policy.selected & world.causes
    assert found.sum() >= 0.8 * world.causes.sum()


def test_only_selected_features_move_an_actions_score(world, policy):
    rows = world.log.X.to_pandas().head(50)
    for a, action in enumerate(policy.actions):
        unused = [name for name in world.log.features if name not in policy.sets()[action]]
        assert unused
        changed = rows.copy()
        for name in unused:
            changed[name] = changed[name].sample(frac=1, random_state=0).to_numpy()
        from ponn.policy.inference import scores

        one, two = (
            scores(policy.model.arrays, policy.encoding.design(x), policy.model.architecture)[:, a]
            for x in (rows, changed)
        )
        assert np.allclose(one, two, atol=1e-5)


def test_probabilities_are_a_distribution_and_sampling_follows_it(world, policy):
    h = policy.predict_proba(world.log)
    assert h.shape == (3_000, 3)
    assert np.allclose(h.sum(axis=1), 1)
    assert np.array_equal(policy.predict(world.log), np.array(policy.actions)[h.argmax(axis=1)])
    drawn = policy.sample(world.log, seed=1)
    assert np.array_equal(drawn, policy.sample(world.log, seed=1))
    for a, action in enumerate(policy.actions):  # 3,000 draws: |z| < 4.5
        sd = np.sqrt(np.sum(h[:, a] * (1 - h[:, a])))
        assert abs((drawn == action).sum() - h[:, a].sum()) < 4.5 * sd


def test_recommend_has_one_row_per_row(world, policy):
    table = policy.recommend(world.log)
    assert table.column_names == ["action", "probability", "runner_up", "expected_reward", "supported"]
    assert table.column("action").to_pylist() == policy.predict(world.log).tolist()
    assert all(one != two for one, two in zip(table.column("action"), table.column("runner_up"), strict=True))


def test_a_policy_says_what_to_expect_and_what_is_supported(world, policy):
    test = world.part("test")
    X = policy.encoding.design(test.log)
    table = policy.recommend(test.log)
    chosen = policy.predict_proba(test.log).argmax(axis=1)
    truth = test.expected[np.arange(len(chosen)), chosen]
    assert np.corrcoef(table.column("expected_reward").to_numpy(), truth)[0, 1] > 0.6
    supported = policy.support(X)
    assert supported.any(axis=1).all()
    assert table.column("supported").to_pylist() == supported[np.arange(len(chosen)), chosen].tolist()


def test_a_safer_policy_takes_only_supported_actions(world, policy):
    X = policy.encoding.design(world.log)
    rare = replace(policy.companions["logging"], arrays=dict(policy.companions["logging"].arrays))
    rare.arrays["c"] = rare.arrays["c"] + np.float32([0, -50, 0])  # the second action was never taken
    cautious = replace(policy, companions={**policy.companions, "logging": rare})
    h = cautious.safer(X)
    assert (h[:, 1] == 0).all()
    assert np.allclose(h.sum(axis=1), 1)
    kept = policy.predict_proba(world.log)[:, [0, 2]]
    assert np.allclose(h[:, [0, 2]], kept / kept.sum(axis=1, keepdims=True))
    never = world.log.actions[1]
    assert never in policy.recommend(world.log).column("action").to_pylist()
    assert never not in cautious.recommend(world.log, supported_only=True).column("action").to_pylist()
    with pytest.raises(ponn.PonnError, match="no picture of current practice"):
        replace(policy, companions={}).recommend(world.log, supported_only=True)
    assert replace(policy, companions={}).recommend(world.log).column("supported").null_count == 3_000


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("ponn-b", "ponn-dr")])  # test_robust.py
def test_every_method_learns(world, method):
    log = world.part("train", "valid").log
    made = ponn.learn(log, method=method, **quick(method, epochs=20, patience=5))
    assert made.method == method
    assert made.selected.all() == (not settings_of(method).relevance)
    assert np.isfinite(made.predict_proba(world.log)).all()


def test_the_logging_method_is_step_a(world):
    log = world.part("train", "valid").log
    made = ponn.learn(log, method="logging")
    first, _ = log.split_rows(0.7, 0)
    part = log.take(first)
    P = propensities(part, made.encoding, Settings()).P
    assert np.allclose(made.predict_proba(part), P, atol=1e-4)  # single precision weights
    chosen = ponn.learn(log, method="logging", propensity_penalty=None)
    loose = ponn.learn(log, method="logging", propensity_penalty=0.0)
    size = [np.abs(one.model.arrays["W1"]).sum() for one in (chosen, loose)]
    assert size[0] < size[1]  # chosen by cross-validation, not left out
    two = log.take(np.flatnonzero(log.A < 2))
    two = replace(two, actions=two.actions[:2])
    h = ponn.learn(two, method="logging").predict_proba(two)
    assert np.average(h[:, 1]) == pytest.approx(np.mean(two.A == 1), abs=0.02)


def test_poem_clips_by_its_authors_rule_unless_told_otherwise(world):
    log = world.part("train", "valid").log
    prepared = prepare(log, settings_of("poem"), 0)
    low, high = np.quantile(1 / prepared.problem.train.w, (0.1, 0.9))
    assert candidates(prepared, settings_of("poem"), {}, 0)[0].settings.clip == pytest.approx(high / low)
    assert candidates(prepared, settings_of("poem", clip=0), {}, 0)[0].settings.clip == 0
    assert candidates(prepared, settings_of("ponn"), {}, 0)[0].settings.clip is None


def test_one_propensity_model_serves_training_and_validation_rows(world):
    log = world.part("train", "valid").log
    prepared = prepare(log, settings_of("ponn"), 0)
    first, rest = log.split_rows(0.7, 0)
    p = propensities(log, prepared.encoding, settings_of("ponn")).p
    assert np.allclose(prepared.problem.train.w, 1 / p[first])
    assert np.allclose(prepared.problem.valid.w, 1 / p[rest])


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if row.grid])
def test_grids_name_settings_and_the_papers_have_twenty_points(method):
    grid = METHODS[method].grid
    for name, tried in grid.items():
        for one in tried:
            settings_of(method, min_cell=1, **{name: one})
    papers = ("ponn-b", "ponn", "poem", "poem-b", "poem-l1", "mlp-l1", "lr-l1")
    assert method not in papers or np.prod([len(tried) for tried in grid.values()]) == 20


def test_settings_that_are_given_are_not_tuned(world):
    log = world.part("train", "valid").log
    made = ponn.learn(log, "lr-l1", tune=True, l1=0.3)
    assert made.provenance["candidates"] == 1
    assert made.settings["l1"] == 0.3


def test_step_c_uses_plain_weights_unless_m_is_given_and_row_weights_count(world):
    log = world.part("train", "valid").log
    plain, cut = (prepare(log, settings_of("ponn", m=m, **QUICK), 0) for m in (None, 2.0))
    assert np.allclose(plain.problem.train.w, 1 / plain.step_a.p)
    assert plain.problem.train.w.max() > 2 == cut.problem.train.w.max()
    weighted = replace(log, weight=np.where(log.A == 0, 3.0, 1.0))
    found = prepare(weighted, settings_of("ponn", **QUICK), 0)
    ratio = found.problem.train.w * found.step_a.p
    assert ratio[found.train.A == 0].mean() == pytest.approx(3 * ratio[found.train.A == 1].mean())


def test_same_seed_same_weights(world):
    log = world.part("train", "valid").log
    first, again, other = (ponn.learn(log, "ponn-b", seed=seed, **QUICK) for seed in (3, 3, 4))
    assert first.digest == again.digest
    assert first.digest != other.digest


def test_tuning_looks_where_the_selection_has_its_dial():
    row = METHODS["ponn-b"]
    assert search_of(row, settings_of("ponn-b"), ())["lambda1"] == LAMBDA1["l2"]
    assert search_of(row, settings_of("ponn-b", loss="l1"), ())["lambda1"] == LAMBDA1["l1"]
    by_test = search_of(row, settings_of("ponn-b", select="fdr"), ("l2",))
    assert by_test == {"fdr": RATES, "learning_rate": row.grid["learning_rate"]}
    assert "lambda1" not in search_of(row, settings_of("ponn-b"), ("lambda1",))
    assert "lambda1" not in search_of(METHODS["ponn"], settings_of("ponn"), ())


def test_a_higher_rate_of_false_discoveries_gives_larger_sets(world):
    chosen = settings_of("ponn-b", select="fdr", **QUICK)
    prepared = prepare(world.part("train", "valid").log, chosen, 0)
    options = candidates(prepared, chosen, {"fdr": RATES}, 0)
    kept = [one.masks.sum() for one in options]
    assert len(options) > 1
    assert kept == sorted(kept)


def test_the_digest_tells_apart_whatever_answers_otherwise(policy):
    first, *others = policy.encoding.features
    features = (replace(first, name="another"), *others)
    logging = policy.companions["logging"]
    heavier = {**logging.arrays, "c": logging.arrays["c"] + np.float32(1)}
    reward = {**policy.provenance["reward"], "minimize": True}
    changes = (
        {"actions": policy.actions[::-1]},
        {"actions": tuple(range(len(policy.actions)))},
        {"encoding": replace(policy.encoding, features=features)},
        {"eligibility": Eligibility(rules=("1 if x0 > 0",))},
        {"companions": {**policy.companions, "logging": replace(logging, arrays=heavier)}},
        {"model": replace(policy.model, architecture=replace(policy.model.architecture, activation="relu"))},
        {"provenance": {**policy.provenance, "reward": reward}},
    )
    digests = [policy.digest, *(replace(policy, **change).digest for change in changes)]
    assert len(set(digests)) == len(digests)
    assert replace(policy, evaluation={"value": 1}, provenance={**policy.provenance, "rows": 7}).digest == digests[0]


def test_tuning_shares_steps_a_and_b_and_never_trains_a_network_twice(world):
    chosen = settings_of("ponn-b", **QUICK)
    prepared = prepare(world.part("train", "valid").log, chosen, 0)
    options = candidates(prepared, chosen, METHODS["ponn-b"].grid, 0)
    keys = {(one.masks.tobytes(), one.settings.l2) for one in options}
    assert len(keys) == len(options) > 3
    tuned = ponn.learn(world.part("train", "valid").log, "ponn-b", tune=True, workers=2, **QUICK)
    plain = ponn.learn(world.part("train", "valid").log, "ponn-b", **QUICK)
    assert tuned.provenance["candidates"] > 1
    assert tuned.provenance["training"]["valid_loss"] <= plain.provenance["training"]["valid_loss"] + 1e-6


# The file ------------------------------------------------------------------------------------------------


def test_a_saved_policy_is_the_same_policy(world, policy, tmp_path):
    path = tmp_path / "clinic.ponn"
    policy.save(path)
    again = ponn.load(path)
    assert np.array_equal(again.predict_proba(world.log), policy.predict_proba(world.log))
    assert again.digest == policy.digest
    assert again.sets() == policy.sets()
    assert again.relevance == policy.relevance
    assert set(tmp_path.iterdir()) == {path, tmp_path / "clinic.ponn.rows"}
    policy.save(tmp_path / "twice.ponn")
    assert path.read_bytes() == (tmp_path / "twice.ponn").read_bytes()


def test_predicting_never_imports_torch_or_scikit_learn(world, policy, tmp_path):
    policy.save(tmp_path / "p.ponn")
    from ponn.tables.files import write_table

    write_table(world.log.X.slice(0, 20), tmp_path / "rows.csv")
    code = "import sys, ponn; from ponn.tables.table import read_table; p = ponn.load('p.ponn');"
    code += "p.recommend(read_table('rows.csv').table); print({'torch', 'sklearn', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def rewrite(path, change):
    """A copy of a policy file whose JSON was changed."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    found = json.loads(parts["policy.json"])
    change(found, parts)
    parts["policy.json"] = json.dumps(found).encode()
    other = path.with_name("changed.ponn")
    with zipfile.ZipFile(other, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found, parts: found.update(format=99), "Install a later version"),
        (lambda found, parts: found.pop("format"), "names no format"),
        (lambda found, parts: found["actions"].append("z"), "do not fit together"),
        (lambda found, parts: found["model"].update(hidden=[7]), "do not fit together"),
        (lambda found, parts: found["encoding"]["features"][0].update(type="eval"), "not a policy file, or is damaged"),
        (lambda found, parts: found.pop("encoding"), "not a policy file, or is damaged"),
        (lambda found, parts: found["companions"]["logging"].update(k=2), "do not fit together"),
        (lambda found, parts: found["companions"].update(other={"kind": "magic"}), "not a policy file, or is damaged"),
        (lambda found, parts: parts.update({"weights.safetensors": b"\0" * 40}), "not a policy file, or is damaged"),
        (lambda found, parts: parts.update({"extra.py": b"import os"}), "it holds"),
    ],
)
def test_hostile_and_damaged_files_are_refused(policy, tmp_path, change, message):
    policy.save(tmp_path / "good.ponn")
    with pytest.raises(ponn.PonnError, match=message):
        ponn.load(rewrite(tmp_path / "good.ponn", change))


def test_what_is_no_policy_file_is_refused(tmp_path):
    with pytest.raises(ponn.PonnError, match="There is no policy file"):
        ponn.load(tmp_path / "nowhere.ponn")
    (tmp_path / "text.ponn").write_text("hello")
    with pytest.raises(ponn.PonnError, match="not a policy file"):
        ponn.load(tmp_path / "text.ponn")


def test_every_truncation_of_a_file_is_refused(policy, tmp_path):
    policy.save(tmp_path / "p.ponn")
    content = (tmp_path / "p.ponn").read_bytes()
    for cut in range(0, len(content) - 1, max(1, len(content) // 60)):
        (tmp_path / "cut.ponn").write_bytes(content[:cut])
        with pytest.raises(ponn.PonnError):
            ponn.load(tmp_path / "cut.ponn")


@pytest.mark.parametrize("method", ["ponn-b", "ponn-dr", "lr-l1"])
def test_one_action_in_the_rows_to_learn_from_is_told_before_anything_is_fitted(method):
    n = 80
    late = np.arange(n) >= 60
    columns = {"x": np.arange(n) % 7, "a": np.where(late, "new", "old"), "r": np.arange(n) % 2, "t": np.arange(n)}
    columns["p"] = np.full(n, 0.5)
    log = ponn.read_log(columns, action="a", reward="r", propensity="p", time="t")
    first, _ = log.split(0.7)
    with pytest.raises(ponn.PonnError, match="only action 'old' was taken; the others were taken only later"):
        ponn.learn(first, method)


@pytest.mark.parametrize("method", ["ponn-b", "ponn-dr", "lr-l1"])
def test_one_reward_in_the_rows_to_learn_from_is_told_before_anything_is_fitted(method):
    n = 80
    columns = {"x": np.arange(n) % 7, "a": np.arange(n) % 2, "r": np.where(np.arange(n) >= 60, 30.0, 20.0)}
    columns |= {"p": np.full(n, 0.5), "t": np.arange(n)}
    log = ponn.read_log(columns, action="a", reward="r", propensity="p", time="t", minimize=True)
    first, _ = log.split(0.7)
    told = "In the .* rows to learn from every reward is 20; others came only later: nothing tells one action"
    with pytest.raises(ponn.PonnError, match=told):
        ponn.learn(first, method)
