"""The test suite; a package so that `tests.sandbox` can be imported and run."""
