"""Presentation: terminal reports and plots."""
