// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Everything at once.
#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/world.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/data/data.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/rendezvous/init.h>
