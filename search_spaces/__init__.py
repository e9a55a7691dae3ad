"""What may be changed: parameters, rules between them, model and GPU facts, memory arithmetic. Imports numpy only."""
