"""Predicted against measured: suites of measured figures, error metrics, and the run of both."""
