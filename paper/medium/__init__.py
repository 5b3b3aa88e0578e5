"""The paper at sizes between `quick` and `full`: units of work kept in the repository, and a page from them."""
