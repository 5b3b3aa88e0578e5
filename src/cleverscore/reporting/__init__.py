"""Tables, plots, HTML pages, comparisons, gates and exports of scores."""
