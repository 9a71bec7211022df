// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "parity/ddp_record.h"
#include "parity/feature_case.h"

namespace lockstep::testing {

// On all ranks of the default group: losses, parameters, their last gradients, buffers and buckets.
std::vector<Record> train_with_features(const FeatureCase& each);

}  // namespace lockstep::testing
