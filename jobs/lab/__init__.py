"""The laboratory: what reproduces the claims of papers and of our pages. It is no part of the product.

``python -m jobs.lab``, in the folder of the checkout, lists the commands. Each package or module begins with its
command, what it decided, and the commit at which its published results last ran.
"""
