"""One run of one arm on one workload, live or simulated, and the folder of evidence that it leaves."""
