// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include <lockstep/training/logging.h>

#include "training/histogram.h"
#include "training/protobuf.h"

namespace lockstep::training {

// Each returns a tensorflow.Summary with one value.
ProtoMessage scalar_summary(const std::string& tag, double value);
ProtoMessage histogram_summary(const std::string& tag, const Histogram& histogram);
ProtoMessage image_summary(const std::string& tag, const at::Tensor& image, const std::string& dataformats);
ProtoMessage text_summary(const std::string& tag, const std::string& text);
// Data of a plugin, without a value.
ProtoMessage plugin_summary(const std::string& tag, const std::string& plugin, const ProtoMessage& content);

// The parts of a row of the hparams plugin. Throw ArgumentError as add_hparams().
struct HparamsSummaries {
  ProtoMessage experiment;
  ProtoMessage session_start;
  ProtoMessage session_end;
};
HparamsSummaries hparams_summaries(const Dict& hparams, const Scalars& metrics, const Dict& domains);

}  // namespace lockstep::training
