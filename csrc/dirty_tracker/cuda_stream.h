// One CUDA device and a stream of ours on it, as the tracker's Device.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "device.h"

namespace looseleaf::dirty_tracker {

// `begin` waits for all work of the whole device, whatever stream it is in: cells may use any. Throws DeviceFailure.
std::shared_ptr<Device> open_cuda_device(int device);

// The device that [data, ...) lies on. Throws InvalidInput for host memory, managed memory (reading it here would move it;
// it is saved as host memory) and unknown addresses.
int device_of(const void* data, const char* which);

}  // namespace looseleaf::dirty_tracker
