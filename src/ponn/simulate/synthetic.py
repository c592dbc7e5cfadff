"""The parametric world: every difficulty of a log can be set, and its truth is exact.

symbol   meaning                                                                        shape
Z        latent normal features, neighbours within a block correlated                   [n, d]
x        observed features: Z itself or its quarter as a text; some cells are missing   [n, d]
phi      effect of feature i, mean 0 and variance 1; 0 where the cell is missing        [n, d]
w        +-effect where feature i is in S_a, else 0                                     [k, d]
r        r(a, x) = 1/2 + sum_i w[a, i] phi_i(x_i) + XOR terms                           [n, k]
theta    weights of the logging logits                                                  [d, k]
g        true relevance g(a, i) = E l(r(a, X_i) - r(a)) (section 4.2.1)                 [k, d]

Rewards and logging depend on what is observed, so nothing is confounded by what the log does not hold.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError
from ponn.policy.inference import draw_actions, softmax
from ponn.simulate.normal import normal_cdf, panels
from ponn.simulate.worlds import LOSSES, World, observe, read_only, split_rows

SHAPES = ("step", "linear", "bump")
REWARDS = ("binary", "continuous")
LEVELS = ("A", "B", "C", "D")  # the quarters of a categorical feature
QUARTILE = 0.6744897501960817  # P(Z <= QUARTILE) = 3/4, hence also the median of |Z|
QUARTERS = (-QUARTILE, 0.0, QUARTILE)
SCORES = tuple(score / math.sqrt(5.0) for score in (-3.0, -1.0, 1.0, 3.0))  # of the levels: mean 0, variance 1
BLOCK = 5  # correlation stays within blocks of this many neighbours, so that truly irrelevant features remain
USUAL_EFFECT = 0.10  # effect when none is given and it is legal: five such features span [0, 1] for "step"
CONCENTRATION = 4.0  # continuous rewards are Beta(4 r, 4 (1 - r)): variance r (1 - r) / 5, a fifth of a binary one
EDGE = 1e-9  # rounding allowed when r must stay in [0, 1], and distance at which a Beta draw is r itself
PIECE = 50_000  # rows drawn at a time when a value is integrated
MOST_CELLS = 2_000_000  # cells a value is enumerated over

PolicyProbabilities = Callable[[pa.Table], np.ndarray]  # features -> h(a | x_j)  [n, k]


@dataclass(frozen=True)
class Synthetic:
    """The parameters of the world. Two worlds with equal parameters and seed have the same truth."""

    rows: int = 10_000
    features: int = 20
    actions: int = 5
    relevant: int = 5  # features per action that move its reward
    effect: float | None = None  # sd of r(a, X_i); None: 0.10, or the largest legal one if that is smaller
    shape: str = "step"  # step: +-1 by the median; linear: phi(x) = x, uniform; bump: +-1 by the median of |x|
    xor_pairs: int = 0  # per action; both features are irrelevant alone, their signs' product moves r by +-effect
    reward: str = "binary"
    bias: float = 1.0  # sd of the logging logits of independent, complete features; 0: uniform logging
    drivers: int | None = None  # features that drive the logging; None: all of them
    correlation: float = 0.0  # of latent neighbours in a block of five; XOR features are independent of all
    categorical: float = 0.0  # share of features that are text with four levels
    missing: float = 0.0  # share of cells that are missing, at random
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self)
        check_numbers(self)
        check_sets(self)
        check_effect(self)

    @property
    def size(self) -> float:
        """The effect, also when none was given."""
        return min(USUAL_EFFECT, self.largest_effect) if self.effect is None else self.effect

    @property
    def largest_effect(self) -> float:
        """The effect at which r(a, x) just reaches 0 and 1."""
        reach = self.relevant * self.largest_phi + self.xor_pairs
        return 0.5 / reach if reach else 0.5

    @property
    def largest_phi(self) -> float:
        """max |phi|: sqrt(3) is that of a uniform variable of variance 1."""
        if self.shape != "linear":
            return 1.0
        return SCORES[-1] if self.categories == self.features else math.sqrt(3.0)

    @property
    def categories(self) -> int:
        """The number of categorical features."""
        return round(self.categorical * self.features)

    @property
    def labels(self) -> tuple[str, ...]:
        """The actions' labels, padded with zeros so that sorting keeps their order."""
        width = len(str(self.actions))
        return tuple(f"a{a:0{width}d}" for a in range(1, self.actions + 1))

    @property
    def names(self) -> tuple[str, ...]:
        """The features' names."""
        return tuple(f"x{i}" for i in range(1, self.features + 1))


def synthetic(known_propensity: bool = False, **parameters: Any) -> World:
    """A world with the given parameters (the fields of `Synthetic`), e.g. synthetic(rows=1_000, bias=2.0)."""
    chosen = Synthetic(**parameters)
    return fresh(chosen, rows=chosen.rows, seed=0, known_propensity=known_propensity)


def fresh(parameters: Synthetic, rows: int, seed: int, known_propensity: bool = False) -> World:
    """New rows of the same world: the truth is that of `parameters`, the rows are those of `seed`."""
    truth = mechanism(parameters)
    row_rng, action_rng, reward_rng, split_rng = row_generators(parameters, seed)
    sample = draw_sample(truth, rows, row_rng)
    p0 = truth.propensities(sample)  # [n, k]
    r = truth.expected(sample)  # [n, k]
    A = draw_actions(p0, action_rng)  # [n]
    rewards = draw_rewards(parameters, r, reward_rng)  # [n, k]
    j = np.arange(rows)
    log = observe(
        sample.table,
        A,
        rewards[j, A],
        names=("action", "reward"),
        propensity=p0[j, A] if known_propensity else None,
        labels=[*parameters.labels],
    )
    return World(
        name="synthetic",
        about=about(replace(parameters, rows=rows)),
        log=log,
        propensities=p0,
        rewards=rewards,
        expected=r,
        **split_rows(rows, split_rng)._asdict(),
        relevance=dict(true_relevance(truth)),
        causes=truth.causes,
    )


def row_generators(parameters: Synthetic, seed: int) -> list[np.random.Generator]:
    """Independent generators for rows, actions, rewards and split; none of them draws the truth."""
    return np.random.default_rng((parameters.seed, 1, seed)).spawn(4)


def about(parameters: Synthetic) -> str:
    """What is invented: everything; and how."""
    told = ", ".join(f"{name} {value}" for name, value in asdict(parameters).items() if value is not None)
    return f"An invented world: features, logging and rewards are drawn from known formulas ({told})."


# The legal parameters ------------------------------------------------------------------------------------


def check_counts(parameters: Synthetic) -> None:
    """Counts are whole numbers, large enough."""
    least = {"rows": 1, "features": 1, "actions": 2, "relevant": 0, "xor_pairs": 0, "drivers": 0, "seed": 0}
    for name, low in least.items():
        value = getattr(parameters, name)
        if name == "drivers" and value is None:
            continue
        if not isinstance(value, int | np.integer) or value < low:
            raise PonnError(f"{name} is {value!r}; expected a whole number of at least {low}.")
    if parameters.drivers is not None and parameters.drivers > parameters.features:
        raise PonnError(f"drivers is {parameters.drivers}; there are only {parameters.features} features.")


def check_numbers(parameters: Synthetic) -> None:
    """Shares are in [0, 1], the correlation is inside (-1, 1), the bias is finite; words are known."""
    legal = {
        "categorical": (0 <= parameters.categorical <= 1, "a share between 0 and 1"),
        "missing": (0 <= parameters.missing < 1, "a share of at least 0 and below 1"),
        "correlation": (-1 < parameters.correlation < 1, "a number between -1 and 1, both excluded"),
        "bias": (0 <= parameters.bias < math.inf, "a finite number of at least 0"),
        "shape": (parameters.shape in SHAPES, f"one of {', '.join(SHAPES)}"),
        "reward": (parameters.reward in REWARDS, f"one of {', '.join(REWARDS)}"),
    }
    for name, (holds, expected) in legal.items():
        if not holds:
            raise PonnError(f"{name} is {getattr(parameters, name)!r}; expected {expected}.")


def check_sets(parameters: Synthetic) -> None:
    """Every action finds enough features for its sets, and the actions' sets can differ."""
    needed = parameters.relevant + 2 * parameters.xor_pairs
    if needed > parameters.features:
        raise PonnError(
            f"Each action needs {needed} features ({parameters.relevant} relevant, {parameters.xor_pairs} XOR pairs), "
            f"but there are only {parameters.features}. Ask for more features or smaller sets."
        )
    chosen = parameters.relevant or 2 * parameters.xor_pairs
    if chosen and math.comb(parameters.features, chosen) < parameters.actions:
        raise PonnError(
            f"{parameters.features} features have fewer than {parameters.actions} different sets of {chosen}; "
            "expected one per action. Ask for more features or fewer actions."
        )


def check_effect(parameters: Synthetic) -> None:
    """r(a, x) stays in [0, 1]."""
    if not 0 <= parameters.size <= parameters.largest_effect + EDGE:
        raise PonnError(
            f"effect is {parameters.size:g}; with {parameters.relevant} relevant features of shape "
            f"{parameters.shape!r} and {parameters.xor_pairs} XOR pairs per action, expected 0 to "
            f"{parameters.largest_effect:.4g}, so that expected rewards stay between 0 and 1."
        )


# The truth -----------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """Rows of features: as the log shows them, and as numbers."""

    table: pa.Table
    Z: np.ndarray  # [n, d]
    scores: np.ndarray  # x as numbers of mean 0 and variance 1, a level as its score  [n, d]
    known: np.ndarray  # is the cell not missing?  [n, d]


@dataclass(frozen=True, eq=False)
class Mechanism:
    """What the seed fixes before any row is drawn: sets, signs, logging weights, kinds of features."""

    parameters: Synthetic
    w: np.ndarray  # [k, d]
    pairs: tuple[tuple[int, int, int, float], ...]  # (a, one feature, the other, +-effect)
    theta: np.ndarray  # [d, k]
    is_category: np.ndarray  # [d]
    link: np.ndarray  # correlation of Z_i with Z_(i-1)  [d]

    @property
    def causes(self) -> np.ndarray:
        """Features that enter r(a, x), XOR pairs included."""
        causes = np.asarray(self.w != 0)  # [k, d]
        for a, *both, _ in self.pairs:
            causes[a, both] = True
        return causes

    def expected(self, sample: Sample) -> np.ndarray:
        """r(a, x) = 1/2 + sum_i w[a, i] phi_i(x_i) + sum over XOR pairs of +-effect times both signs."""
        r = 0.5 + self.phi(sample) @ self.w.T  # [n, k]
        for a, *both, size in self.pairs:
            r[:, a] += size * np.prod(np.sign(sample.Z[:, both]) * sample.known[:, both], axis=1)
        return np.asarray(np.clip(r, 0.0, 1.0))  # against rounding only: legal effects keep r inside

    def phi(self, sample: Sample) -> np.ndarray:
        """The features' effects; a missing cell has none."""
        curve = STEPS.get(self.parameters.shape)
        effects = sample.scores if curve is None else curve(sample.Z)
        return np.asarray(effects * sample.known)  # [n, d]

    def propensities(self, sample: Sample) -> np.ndarray:
        """p0(a | x) = softmax_a of the logits."""
        return softmax((sample.scores * sample.known) @ self.theta)  # [n, k]


@lru_cache(maxsize=16)
def mechanism(parameters: Synthetic) -> Mechanism:
    """The truth of a world; the same for any number of rows."""
    set_rng, theta_rng, kind_rng = np.random.default_rng((parameters.seed, 0)).spawn(3)
    w, pairs = draw_sets(parameters, set_rng)
    is_category = np.zeros(parameters.features, bool)
    is_category[kind_rng.permutation(parameters.features)[: parameters.categories]] = True
    return Mechanism(parameters, w, pairs, draw_theta(parameters, theta_rng), is_category, links(parameters, pairs))


def draw_sets(
    parameters: Synthetic, rng: np.random.Generator
) -> tuple[np.ndarray, tuple[tuple[int, int, int, float], ...]]:
    """Relevant features and XOR pairs of every action, with signs; no two actions have the same set."""
    s = parameters.relevant
    w = np.zeros((parameters.actions, parameters.features))
    pairs: list[tuple[int, int, int, float]] = []
    for a, chosen in enumerate(different_sets(parameters, rng)):
        signs = parameters.size * rng.choice([-1.0, 1.0], s + parameters.xor_pairs)
        w[a, chosen[:s]] = signs[:s]
        both = chosen[s:].reshape(-1, 2)
        pairs += [(a, int(i), int(o), float(size)) for (i, o), size in zip(both, signs[s:], strict=True)]
    return w, tuple(pairs)


def different_sets(parameters: Synthetic, rng: np.random.Generator) -> list[np.ndarray]:
    """Per action its relevant features, then its XOR features; drawn again until no set occurs twice."""
    needed = parameters.relevant + 2 * parameters.xor_pairs
    seen: set[frozenset[int]] = set()
    sets: list[np.ndarray] = []
    while len(sets) < parameters.actions:
        chosen = rng.permutation(parameters.features)[:needed]
        key = frozenset(chosen[: parameters.relevant or needed].tolist())
        if key not in seen or not needed:
            sets.append(chosen)
            seen.add(key)
    return sets


def draw_theta(parameters: Synthetic, rng: np.random.Generator) -> np.ndarray:
    """Logging weights: a random direction among the drivers, of length `bias` for every action."""
    theta = rng.standard_normal((parameters.features, parameters.actions))  # [d, k]
    if parameters.drivers is not None:
        theta[rng.permutation(parameters.features)[parameters.drivers :]] = 0.0
    length = np.linalg.norm(theta, axis=0)
    return np.asarray(parameters.bias * theta / np.where(length > 0, length, 1.0))


def links(parameters: Synthetic, pairs: tuple[tuple[int, int, int, float], ...]) -> np.ndarray:
    """Correlation of Z_i with Z_(i-1): none at the start of a block and none with an XOR feature."""
    link = np.full(parameters.features, parameters.correlation)
    link[::BLOCK] = 0.0
    for _, *both, _ in pairs:
        for i in both:
            link[int(i) : int(i) + 2] = 0.0
    return link


# Rows ----------------------------------------------------------------------------------------------------


def draw_sample(truth: Mechanism, rows: int, rng: np.random.Generator) -> Sample:
    """New rows of features."""
    d = truth.parameters.features
    Z = rng.standard_normal((d, rows)).T  # column by column in memory, as the table keeps it  [n, d]
    for i in np.flatnonzero(truth.link):
        Z[:, i] = truth.link[i] * Z[:, i - 1] + math.sqrt(1 - truth.link[i] ** 2) * Z[:, i]
    missing = truth.parameters.missing
    known = np.ones((d, rows), bool) if missing == 0 else missing <= rng.random((d, rows))
    return observed(truth, Z, known.T)


def observed(truth: Mechanism, Z: np.ndarray, known: np.ndarray) -> Sample:
    """What the log shows of the latent features: numbers, or the quarter as a text."""
    scores = uniform(Z) if truth.parameters.shape == "linear" else Z.copy(order="K")
    columns = []
    for i, is_category in enumerate(truth.is_category):
        if is_category:
            level = np.searchsorted(QUARTERS, Z[:, i])
            scores[:, i] = np.take(SCORES, level)
            columns.append(pa.array(LEVELS).take(pa.array(level, mask=~known[:, i])))
        else:
            columns.append(pa.array(scores[:, i], mask=~known[:, i]))
    return Sample(pa.table(dict(zip(truth.parameters.names, columns, strict=True))), Z, scores, known)


def draw_rewards(parameters: Synthetic, r: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """R(a) of every action: 0 or 1 with mean r, or Beta-distributed with mean r."""
    if parameters.reward == "binary":
        return (rng.random(r.shape) < r).astype(np.int64)
    inside = np.clip(r, EDGE, 1 - EDGE)
    return np.where(inside == r, rng.beta(CONCENTRATION * inside, CONCENTRATION * (1 - inside)), r)


# Curves of the standard normal ---------------------------------------------------------------------------


def uniform(z: np.ndarray) -> np.ndarray:
    """A normal variable as a uniform one of mean 0 and variance 1."""
    return math.sqrt(3.0) * (2.0 * normal_cdf(z) - 1.0)


@dataclass(frozen=True)
class Steps:
    """A step function of Z: values[c] between cuts[c - 1] and cuts[c]."""

    cuts: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """The value at z."""
        total = np.full_like(z, self.values[0])
        for cut, rise in zip(self.cuts, np.diff(self.values), strict=True):
            total += rise * (z > cut)
        return total

    def given(self, z: np.ndarray, rho: float) -> np.ndarray:
        """E[value at Z_o | Z_i = z] when Z_o and Z_i have correlation rho, |rho| < 1."""
        s = math.sqrt(1 - rho**2)
        rises = zip(self.cuts, np.diff(self.values), strict=True)
        return np.asarray(self.values[0] + sum(rise * normal_cdf((rho * z - cut) / s) for cut, rise in rises))


# phi by shape. Levels are quarters, so "step" and "bump" read the same from a level as from the number.
STEPS = {"step": Steps((0.0,), (-1.0, 1.0)), "bump": Steps((-QUARTILE, QUARTILE), (1.0, -1.0, 1.0))}
LEVEL_SCORE = Steps(QUARTERS, SCORES)


def uniform_given(z: np.ndarray, rho: float) -> np.ndarray:
    """E[uniform(Z_o) | Z_i = z], from E Phi(m + s e) = Phi(m / sqrt(1 + s^2)) with m = rho z, s^2 = 1 - rho^2."""
    return uniform(rho * z / math.sqrt(2 - rho**2))


# True relevance ------------------------------------------------------------------------------------------

# 4 quarters x 32 parts x 16 nodes: the kink of |.| is then met within 1e-5 of g.
NODES, WEIGHTS = panels(QUARTERS, parts=32)


@lru_cache(maxsize=16)
def true_relevance(truth: Mechanism) -> Mapping[str, np.ndarray]:
    """g(a, i) for the losses l1 and l2, by quadrature over the latent Z_i."""
    rho = latent_correlations(truth.link)  # [d, d]
    g = {name: np.zeros_like(truth.w) for name in LOSSES}
    for a, i in zip(*np.nonzero(np.abs(truth.w) @ rho**2), strict=True):  # elsewhere X_i tells nothing about S_a
        shift = conditional_shift(truth, int(a), int(i), rho[i])  # [4, nodes]
        for name, loss in LOSSES.items():
            g[name][a, i] = (1 - truth.parameters.missing) * np.sum(WEIGHTS * loss(shift))
    return read_only(g)


def latent_correlations(link: np.ndarray) -> np.ndarray:
    """corr(Z_i, Z_o): the product of the links between them."""
    rho = np.eye(len(link))
    for i, o in itertools.combinations(range(len(link)), 2):
        rho[i, o] = rho[o, i] = rho[i, o - 1] * link[o]
    return rho  # [d, d]


def conditional_shift(truth: Mechanism, a: int, i: int, rho: np.ndarray) -> np.ndarray:
    """r(a, X_i) - r(a) at the nodes of Z_i, where X_i is known; where it is missing the shift is 0.

    w[a, i] phi_i(X_i) + (1 - missing) sum over o != i of w[a, o] E[phi_o | X_i]. XOR terms have mean 0 given any
    one feature.
    """
    known = 1 - truth.parameters.missing
    shift = np.zeros_like(NODES)
    for o in np.flatnonzero(truth.w[a] * rho).tolist():
        part = phi_at_nodes(truth, i) if o == i else known * phi_given(truth, o, rho[o])
        shift += truth.w[a, o] * part
    if truth.is_category[i]:  # X_i tells only the quarter of Z_i, and each has probability 1/4
        shift[:] = 4 * np.sum(WEIGHTS * shift, axis=1, keepdims=True)
    return shift


def phi_at_nodes(truth: Mechanism, i: int) -> np.ndarray:
    """phi_i at the nodes of Z_i."""
    curve = STEPS.get(truth.parameters.shape, LEVEL_SCORE if truth.is_category[i] else uniform)
    return curve(NODES)


def phi_given(truth: Mechanism, o: int, rho: float) -> np.ndarray:
    """E[phi_o | Z_i] at the nodes of Z_i."""
    curve = STEPS.get(truth.parameters.shape, LEVEL_SCORE if truth.is_category[o] else None)
    return uniform_given(NODES, rho) if curve is None else curve.given(NODES, rho)


# Values --------------------------------------------------------------------------------------------------


class Value(NamedTuple):
    """The true value of a policy, and the standard error of its integration."""

    value: float
    standard_error: float


def true_value(parameters: Synthetic, policy: PolicyProbabilities, rows: int = 200_000, seed: int = 1) -> Value:
    """E sum_a h(a | X) r(a, X), integrated over fresh rows. `policy` maps features to h  [n, k]."""
    truth = mechanism(parameters)
    rng = row_generators(parameters, seed)[0]
    sizes = [min(PIECE, rows - start) for start in range(0, rows, PIECE)]
    values = np.concatenate([row_values(truth, policy, draw_sample(truth, size, rng)) for size in sizes])
    return Value(float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(rows)))


def row_values(truth: Mechanism, policy: PolicyProbabilities, sample: Sample) -> np.ndarray:
    """sum_a h(a | X_j) r(a, X_j) of every row."""
    h = np.asarray(policy(sample.table))
    r = truth.expected(sample)
    if h.shape != r.shape:
        raise PonnError(f"The policy gave probabilities of shape {h.shape}; expected {r.shape}, rows by actions.")
    return np.asarray(np.sum(h * r, axis=1))  # [n]


def enumerate_value(parameters: Synthetic, policy: PolicyProbabilities) -> float:
    """E sum_a h(a | X) r(a, X), exactly: a sum over every row that can occur.

    Possible when all features are categorical and independent, and 4^d rows (5^d with missing cells) are few.
    """
    check_countable(parameters)
    truth = mechanism(parameters)
    sample, chance = every_row(truth)
    return float(chance @ row_values(truth, policy, sample))


def check_countable(parameters: Synthetic) -> None:
    """Raise unless the features take few values, with known joint probabilities."""
    cells = (len(LEVELS) + (parameters.missing > 0)) ** parameters.features
    if parameters.categories < parameters.features or parameters.correlation or cells > MOST_CELLS:
        raise PonnError(
            f"A value can be enumerated only with categorical=1, correlation=0 and at most {MOST_CELLS:,} "
            f"different rows; here categorical={parameters.categorical:g}, correlation="
            f"{parameters.correlation:g}, {cells:.3g} rows. Use true_value, which integrates over drawn rows."
        )


def every_row(truth: Mechanism) -> tuple[Sample, np.ndarray]:
    """Each row that can occur, and its probability."""
    missing = truth.parameters.missing
    inner = np.array([-1.0, -0.5, 0.5, 1.0])  # one point in each quarter
    cells = np.array([*inner, np.nan])[: 5 if missing else 4]
    Z = np.stack(np.meshgrid(*[cells] * truth.parameters.features, indexing="ij"), -1)
    Z = Z.reshape(-1, truth.parameters.features)
    known = ~np.isnan(Z)
    chance = np.where(known, (1 - missing) / 4, missing).prod(axis=1)
    return observed(truth, np.where(known, Z, 0.5), known), chance
