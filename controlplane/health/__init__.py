"""Health on the control plane's side: vitals in, verdicts out."""
