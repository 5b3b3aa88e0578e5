"""The tables and figures of Weng et al. (ICLR 2018), computed again: `python -m paper --quick`, or one by its name."""
