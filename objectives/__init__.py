"""What is wanted: measurements, metrics, objectives and limits, and Pareto arithmetic. Imports numpy only."""
