"""Studies: a plan that is written first, trials in shuffled order, and a report from what they left."""
