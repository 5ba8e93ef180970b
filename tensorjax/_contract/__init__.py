"""Private parts of `tensorjax.contract`: parsing, path search, costs, slicing, execution."""
