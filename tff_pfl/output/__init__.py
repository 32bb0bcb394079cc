"""Writes files, tables and progress bars."""
