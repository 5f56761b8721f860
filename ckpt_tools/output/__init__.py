"""Results -> text: one module per output format, each with a pure ``render``. Import the one you need; table
is the only one that costs.
"""
