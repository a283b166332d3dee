"""How to call other libraries, whatever their version."""

from sklearn.linear_model import LogisticRegression

# scikit-learn 1.8 has replaced penalty="l1" by l1_ratio=1.
L1_OF_SCIKIT_LEARN = (
    {"penalty": "l1"} if LogisticRegression().get_params()["penalty"] == "l2" else {"l1_ratio": 1}
)
