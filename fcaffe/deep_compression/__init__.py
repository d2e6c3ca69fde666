"""Deep Compression (S. Han, H. Mao, W. Dally, 2016): pruning, shared weights and entropy codes.

`command` is `fcaffe compress`, registered in fcaffe/cli/commands.py. Nothing else imports this folder.
fcaffe/model_files/npz.py is the file format.
"""
