// Checked CUDA calls: every return code becomes a typed exception with the call, its place and the code.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "errors.h"

namespace looseleaf::dirty_tracker {

struct CudaFailure : std::runtime_error {
  CudaFailure(std::string call_text, std::string call_place, cudaError_t error)
      : std::runtime_error(call_text + " failed: " + cudaGetErrorString(error)),
        call(std::move(call_text)),
        place(std::move(call_place)),
        code(error),
        code_name(cudaGetErrorName(error)) {}
  std::string call;
  std::string place;
  cudaError_t code;
  std::string code_name;
};

#define LOOSELEAF_CUDA(call)                                                                        \
  do {                                                                                              \
    const cudaError_t looseleaf_cuda_result = (call);                                               \
    if (looseleaf_cuda_result != cudaSuccess) {                                                     \
      throw ::looseleaf::dirty_tracker::CudaFailure(#call, LOOSELEAF_PLACE, looseleaf_cuda_result); \
    }                                                                                               \
  } while (false)

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

// Device memory that is allocated and freed in the order of one stream.
class StreamMemory {
 public:
  StreamMemory(std::size_t size_bytes, cudaStream_t stream) : stream_(stream) {
    LOOSELEAF_CUDA(cudaMallocAsync(&data_, size_bytes, stream));
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  // Freeing fails only after an earlier call on this stream did, and that one was reported.
  ~StreamMemory() { static_cast<void>(cudaFreeAsync(data_, stream_)); }

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  cudaStream_t stream_;
};

}  // namespace looseleaf::dirty_tracker
