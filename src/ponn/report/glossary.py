"""The words of the report and of the commands, in plain ones."""

GLOSSARY = {
    "Action": "What was done, or could be done, in a case: a treatment, an offer, a banner.",
    "Balance": "Whether those who got an action look like everyone. Before weighting they rarely do.",
    "Best fixed action": "The single action that would have done best had everyone got it; chosen on training rows.",
    "Calibration": "Whether cases that were expected to do well did as well as expected.",
    "Confounding, hidden": "A reason for past decisions that also changes the outcome and is not in the log.",
    "Current practice": "Whatever was done when the log was made. Its value is the mean outcome of the log.",
    "Effective rows": "How many equally weighted rows would be as precise as these. Where they are far fewer than the "
    "rows, few rows speak for the policy.",
    "Estimator": "A way to compute what a policy would have brought from rows that something else decided.",
    "Fidelity": "How often the simple summary and the policy itself recommend the same.",
    "Interval": "Numbers between which the true value lies with the stated confidence.",
    "Not trusted": "The log hardly contains what the policy would do, so the number beside this mark may be far off.",
    "Pareto k": "How much the largest weights stick out. Above about 0.7 a few rows decide the result.",
    "Policy": "A rule that recommends an action for a case.",
    "Propensity": "The probability with which the action that was taken would be taken in such a case.",
    "Relevance": "How much the outcome of an action depends on a feature.",
    "Reward, outcome": "How a case turned out, as a number.",
    "Support": "The log supports an action for a case if such cases got it at least now and then.",
    "Value": "The mean outcome had the policy decided.",
    "Weight": "How many cases a row stands for: 1 / propensity where the policy would have done the same, else 0.",
}

ABOUT_ESTIMATORS = {
    "dr": "the reward model, corrected by weighted rows; right if either it or the propensities are",
    "sndr": "the same with weights that add up to one",
    "ips": "outcomes of rows in which the policy would have done the same, weighted by 1 / propensity",
    "snips": "the same with weights that add up to one",
    "truncated-ips": "ips with large weights cut",
    "switch-dr": "dr, but rows with a large weight are left to the reward model",
    "dros": "dr with shrunk weights",
    "dm": "the reward model alone; its interval has the width of dr's: the model's own spread leaves out the model's "
    "error",
}

# Other ways to follow a policy than taking what it recommends, by their names in JSON
VARIANTS = {"supported_only": "this policy, supported actions only", "drawn": "this policy, actions drawn"}
