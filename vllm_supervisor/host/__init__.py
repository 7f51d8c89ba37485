"""The world outside, one file for each part of it; nothing in here decides anything."""
