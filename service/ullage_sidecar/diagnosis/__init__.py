"""Diagnosis: which claims disagree, and which rival causes explain it. Pure: no engine, no segment, no clock."""
