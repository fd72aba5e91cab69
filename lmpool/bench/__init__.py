"""Workloads, load client, benchmarks, studies, figures."""
