// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "serialize/safetensors_header.h"

namespace lockstep::safetensors {

/// The tensors, in their order, and the metadata in the JSON text of a header, of which only the sizes and
/// places of tensors remain to be checked. Throws CheckpointError.
Header parse_header(const std::string& text);

/// The JSON text for these tensors, in their order, padded to whole 8 bytes. Throws CheckpointError for a
/// name, or metadata, that is no UTF-8.
std::string header_text(const std::vector<TensorInfo>& tensors, const Metadata& metadata);

}  // namespace lockstep::safetensors
