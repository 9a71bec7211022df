// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>

#include "transforms/augment_ops.h"

// The published policies of AutoAugment: 25 pairs of operations for each data set.
namespace lockstep::transforms {

struct PolicyStep {
  AugmentOp op;
  double p;
  std::int64_t magnitude = 0;  // 0 .. 9
};

using Policy = std::array<std::array<PolicyStep, 2>, 25>;

namespace policy_steps {

using enum AugmentOp;

constexpr Policy kImageNet = {{
    {{{posterize, 0.4, 8}, {rotate, 0.6, 9}}}, {{{solarize, 0.6, 5}, {auto_contrast, 0.6}}},
    {{{equalize, 0.8}, {equalize, 0.6}}},      {{{posterize, 0.6, 7}, {posterize, 0.6, 6}}},
    {{{equalize, 0.4}, {solarize, 0.2, 4}}},   {{{equalize, 0.4}, {rotate, 0.8, 8}}},
    {{{solarize, 0.6, 3}, {equalize, 0.6}}},   {{{posterize, 0.8, 5}, {equalize, 1.0}}},
    {{{rotate, 0.2, 3}, {solarize, 0.6, 8}}},  {{{equalize, 0.6}, {posterize, 0.4, 6}}},
    {{{rotate, 0.8, 8}, {color, 0.4, 0}}},     {{{rotate, 0.4, 9}, {equalize, 0.6}}},
    {{{equalize, 0.0}, {equalize, 0.8}}},      {{{invert, 0.6}, {equalize, 1.0}}},
    {{{color, 0.6, 4}, {contrast, 1.0, 8}}},   {{{rotate, 0.8, 8}, {color, 1.0, 2}}},
    {{{color, 0.8, 8}, {solarize, 0.8, 7}}},   {{{sharpness, 0.4, 7}, {invert, 0.6}}},
    {{{shear_x, 0.6, 5}, {equalize, 1.0}}},    {{{color, 0.4, 0}, {equalize, 0.6}}},
    {{{equalize, 0.4}, {solarize, 0.2, 4}}},   {{{solarize, 0.6, 5}, {auto_contrast, 0.6}}},
    {{{invert, 0.6}, {equalize, 1.0}}},        {{{color, 0.6, 4}, {contrast, 1.0, 8}}},
    {{{equalize, 0.8}, {equalize, 0.6}}},
}};

constexpr Policy kCifar10 = {{
    {{{invert, 0.1}, {contrast, 0.2, 6}}},
    {{{rotate, 0.7, 2}, {translate_x, 0.3, 9}}},
    {{{sharpness, 0.8, 1}, {sharpness, 0.9, 3}}},
    {{{shear_y, 0.5, 8}, {translate_y, 0.7, 9}}},
    {{{auto_contrast, 0.5}, {equalize, 0.9}}},
    {{{shear_y, 0.2, 7}, {posterize, 0.3, 7}}},
    {{{color, 0.4, 3}, {brightness, 0.6, 7}}},
    {{{sharpness, 0.3, 9}, {brightness, 0.7, 9}}},
    {{{equalize, 0.6}, {equalize, 0.5}}},
    {{{contrast, 0.6, 7}, {sharpness, 0.6, 5}}},
    {{{color, 0.7, 7}, {translate_x, 0.5, 8}}},
    {{{equalize, 0.3}, {auto_contrast, 0.4}}},
    {{{translate_y, 0.4, 3}, {sharpness, 0.2, 6}}},
    {{{brightness, 0.9, 6}, {color, 0.2, 8}}},
    {{{solarize, 0.5, 2}, {invert, 0.0}}},
    {{{equalize, 0.2}, {auto_contrast, 0.6}}},
    {{{equalize, 0.2}, {equalize, 0.6}}},
    {{{color, 0.9, 9}, {equalize, 0.6}}},
    {{{auto_contrast, 0.8}, {solarize, 0.2, 8}}},
    {{{brightness, 0.1, 3}, {color, 0.7, 0}}},
    {{{solarize, 0.4, 5}, {auto_contrast, 0.9}}},
    {{{translate_y, 0.9, 9}, {translate_y, 0.7, 9}}},
    {{{auto_contrast, 0.9}, {solarize, 0.8, 3}}},
    {{{equalize, 0.8}, {invert, 0.1}}},
    {{{translate_y, 0.7, 9}, {auto_contrast, 0.9}}},
}};

constexpr Policy kSvhn = {{
    {{{shear_x, 0.9, 4}, {invert, 0.2}}},          {{{shear_y, 0.9, 8}, {invert, 0.7}}},
    {{{equalize, 0.6}, {solarize, 0.6, 6}}},       {{{invert, 0.9}, {equalize, 0.6}}},
    {{{equalize, 0.6}, {rotate, 0.9, 3}}},         {{{shear_x, 0.9, 4}, {auto_contrast, 0.8}}},
    {{{shear_y, 0.9, 8}, {invert, 0.4}}},          {{{shear_y, 0.9, 5}, {solarize, 0.2, 6}}},
    {{{invert, 0.9}, {auto_contrast, 0.8}}},       {{{equalize, 0.6}, {rotate, 0.9, 3}}},
    {{{shear_x, 0.9, 4}, {solarize, 0.3, 3}}},     {{{shear_y, 0.8, 8}, {invert, 0.7}}},
    {{{equalize, 0.9}, {translate_y, 0.6, 6}}},    {{{invert, 0.9}, {equalize, 0.6}}},
    {{{contrast, 0.3, 3}, {rotate, 0.8, 4}}},      {{{invert, 0.8}, {translate_y, 0.0, 2}}},
    {{{shear_y, 0.7, 6}, {solarize, 0.4, 8}}},     {{{invert, 0.6}, {rotate, 0.8, 4}}},
    {{{shear_y, 0.3, 7}, {translate_x, 0.9, 3}}},  {{{shear_x, 0.1, 6}, {invert, 0.6}}},
    {{{solarize, 0.7, 2}, {translate_y, 0.6, 7}}}, {{{shear_y, 0.8, 4}, {invert, 0.8}}},
    {{{shear_x, 0.7, 9}, {translate_y, 0.8, 3}}},  {{{shear_y, 0.8, 5}, {auto_contrast, 0.7}}},
    {{{shear_x, 0.7, 2}, {invert, 0.1}}},
}};

}  // namespace policy_steps
}  // namespace lockstep::transforms
