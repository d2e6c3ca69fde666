"""Deep Compression (S. Han, H. Mao, W. Dally, 2016): pruning, shared weights and Huffman codes.

`command` is `fcaffe compress`, registered in fcaffe/cli/commands.py. `dcmodel` is the file format, registered in
fcaffe/model_files. Nothing else imports this folder.
"""
