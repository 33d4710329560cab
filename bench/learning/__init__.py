"""What the shipped forecast is made by: which kernels it chooses from, and what is learnt from a survey of them."""
