// Checked CUDA calls: every return code becomes a typed exception with the call, its place and the code.
#pragma once

#include <cuda_runtime_api.h>

#include "device.h"

namespace looseleaf::dirty_tracker {

// Throws the DeviceFailure of `call` for any result but success.
inline void check_cuda(cudaError_t result, const char* call, const char* place) {
  if (result == cudaSuccess) return;
  // Clears an error that is not sticky, so that the next check of a launch does not report it again.
  static_cast<void>(cudaGetLastError());
  // Whether it stays, a second question tells: no list of codes can be complete.
  const bool is_sticky = cudaPeekAtLastError() != cudaSuccess;
  throw DeviceFailure(call, place, result, cudaGetErrorName(result), cudaGetErrorString(result), is_sticky);
}

#define LOOSELEAF_CUDA(call) ::looseleaf::dirty_tracker::check_cuda((call), #call, LOOSELEAF_PLACE)

// Makes `device` current for this thread, and the former one again at the end of the scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    LOOSELEAF_CUDA(cudaGetDevice(&former_));
    LOOSELEAF_CUDA(cudaSetDevice(device));
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  // A destructor cannot throw; a device that cannot be made current again fails the caller's next CUDA call.
  ~CurrentDevice() { static_cast<void>(cudaSetDevice(former_)); }

 private:
  int former_ = 0;
};

}  // namespace looseleaf::dirty_tracker
