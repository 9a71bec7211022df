// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "data/bytes.h"

namespace lockstep::data {

// The orientation in an EXIF block, a TIFF structure, before which "Exif\0\0" may stand; 1 when there is none or
// the block is damaged. PIL: getexif()[0x0112].
int exif_orientation(ByteSpan exif);

}  // namespace lockstep::data
