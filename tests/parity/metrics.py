# SPDX-License-Identifier: BSD-3-Clause
"""What scikit-learn, or PyTorch on all samples at once, computes for each case of a file."""
import sys

import torch
from sklearn import metrics


def expected(case):
    scores, targets = case["scores"], case["targets"]
    classes = scores.shape[1]
    predicted = scores.argmax(1)
    labels = list(range(classes))
    result = {
        "accuracy": metrics.accuracy_score(targets, predicted),
        "top_2": metrics.top_k_accuracy_score(targets, scores, k=2, labels=labels) if classes > 2 else 1.0,
        "confusion_matrix": torch.from_numpy(metrics.confusion_matrix(targets, predicted, labels=labels)),
        "balanced_accuracy": metrics.balanced_accuracy_score(targets, predicted),
        "mean_squared_error": metrics.mean_squared_error(targets.double(), scores[:, 0].double()),
        "perplexity": torch.nn.functional.cross_entropy(scores.double(), case["tokens"]).exp().item(),
        "binary_auroc": metrics.roc_auc_score(targets == 0, scores[:, 0]),
    }
    for average in ("micro", "macro", "weighted"):
        for name in ("precision", "recall", "f1"):
            score = getattr(metrics, f"{name}_score")
            result[f"{name} {average}"] = score(targets, predicted, average=average, zero_division=0)
    per_class = metrics.precision_recall_fscore_support(targets, predicted, labels=labels, zero_division=0)
    result["class_scores"] = torch.tensor(per_class, dtype=torch.float64)
    if classes > 2 and len(targets.unique()) == classes:
        shares = scores.double().softmax(1)
        result["auroc"] = metrics.roc_auc_score(targets, shares, multi_class="ovr")
    return result


cases = torch.load(sys.argv[1], weights_only=True)
torch.save([{name: torch.as_tensor(value, dtype=torch.float64) for name, value in expected(case).items()}
            for case in cases], sys.argv[2])
