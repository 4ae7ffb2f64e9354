"""How long operators and workloads take: profiles as one table, baselines, and the decision about a change."""
