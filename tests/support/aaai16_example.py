"""The worked example of Kong, Liu, Liu & Bao, "Uncorrelated Group LASSO", AAAI 2016, Eq. (5).

The paper prints the transposes, and X without its signs. These were recovered: from the five printed
correlations with feature 7, the printed groups, and the four printed selection errors, which leave no other
choice but the signs of whole features and of all samples of a class. Those change nothing that is printed.
"""

import numpy as np

# 8 samples, 7 features
X = np.array([
    [1.1985, 0.8886, 0.8880, 0.7152, 1.4138, 0.3189, 0.6110],
    [0.5955, -0.5759, -0.9235, -0.6884, 1.2350, -1.2898, 0.8934],
    [0.1827, -0.9365, -0.9443, 0.8502, 0.7874, -0.2272, 1.6744],
    [0.7212, -1.6189, 0.6196, -0.7252, 0.4038, 1.3298, -0.1338],
    [1.0420, 0.6780, 0.8831, -0.2169, 0.6772, 1.0563, -1.4329],
    [0.7221, -1.0434, -1.2441, 0.1620, 1.0096, -0.8152, 1.0640],
    [0.2868, 0.6525, -0.1170, 0.3381, -1.5076, -1.6670, -0.5588],
    [1.4018, -0.0545, 1.3762, 0.8394, 0.4874, 0.3058, 1.0499],
])  # fmt: skip

# 3 classes
Y = np.array([
    [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0],
], float)  # fmt: skip
