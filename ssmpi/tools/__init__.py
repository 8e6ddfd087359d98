"""What the commands beside training do: plan, forecast, doctor, score, export, inspect."""
