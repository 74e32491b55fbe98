"""The files of MNIST and its like (IDX), and of CIFAR."""
