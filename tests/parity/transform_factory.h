// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <lockstep/serialize/value.h>
#include <lockstep/transforms/transforms.h>

namespace lockstep::testing {

/// The transform with this name and these arguments, as transform_cases.py writes them. An argument that is
/// absent keeps its default.
transforms::Transform make_transform(const std::string& name, const Dict& arguments);

/// The same for MixUp and CutMix.
transforms::MixOptions mix_options(const Dict& arguments);

}  // namespace lockstep::testing
