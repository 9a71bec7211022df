// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>
#include <vector>

#include <lockstep/transforms/transforms.h>

namespace lockstep::data_tool {

// The transforms of a text in Python's notation with torchvision's arguments: one, or several separated by
// commas: "RandomResizedCrop(224, scale=(0.5, 1.0)), RandomHorizontalFlip()". A Compose at the top gives its
// transforms. Throws ArgumentError for an
// unknown name or argument, and for a value of another type.
std::vector<transforms::Transform> transforms_of(std::string_view text);

}  // namespace lockstep::data_tool
