#include "cuda_stream.h"

#include <string>

#include "cuda_device.h"
#include "device_kernels.h"

namespace looseleaf::dirty_tracker {
namespace {

class CudaEvent : public DeviceEvent {
 public:
  explicit CudaEvent(cudaStream_t stream) {
    LOOSELEAF_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync));
    const cudaError_t recorded = cudaEventRecord(event_, stream);
    if (recorded != cudaSuccess) static_cast<void>(cudaEventDestroy(event_));
    check_cuda(recorded, "cudaEventRecord(event_, stream)", LOOSELEAF_PLACE);
  }
  // Destroying fails only after the device itself did, and that was reported.
  ~CudaEvent() override { static_cast<void>(cudaEventDestroy(event_)); }
  void wait() override { LOOSELEAF_CUDA(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaStreamDevice : public Device {
 public:
  explicit CudaStreamDevice(int device) : device_(device) {
    const CurrentDevice current(device_);
    int processors = 0;
    LOOSELEAF_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device_));
    processors_ = static_cast<unsigned>(processors);
    LOOSELEAF_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~CudaStreamDevice() override { static_cast<void>(cudaStreamDestroy(stream_)); }

  void begin() override {
    const CurrentDevice current(device_);
    LOOSELEAF_CUDA(cudaDeviceSynchronize());
  }

  DeviceMemory allocate(std::size_t size) override {
    const CurrentDevice current(device_);
    void* data = nullptr;
    LOOSELEAF_CUDA(cudaMallocAsync(&data, size, stream_));
    // Freeing fails only after an earlier call on this stream did, and that one was reported.
    return DeviceMemory(static_cast<std::uint8_t*>(data),
                        [stream = stream_](std::uint8_t* memory) { static_cast<void>(cudaFreeAsync(memory, stream)); });
  }

  DeviceMemory allocate_pinned(std::size_t size) override {
    const CurrentDevice current(device_);
    void* data = nullptr;
    LOOSELEAF_CUDA(cudaHostAlloc(&data, size, cudaHostAllocPortable));
    return DeviceMemory(static_cast<std::uint8_t*>(data),
                        [](std::uint8_t* memory) { static_cast<void>(cudaFreeHost(memory)); });
  }

  void copy_to_device(std::uint8_t* to, const std::uint8_t* from, std::size_t size) override {
    const CurrentDevice current(device_);
    LOOSELEAF_CUDA(cudaMemcpyAsync(to, from, size, cudaMemcpyHostToDevice, stream_));
  }
  void copy_to_host(std::uint8_t* to, const std::uint8_t* from, std::size_t size) override {
    const CurrentDevice current(device_);
    LOOSELEAF_CUDA(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToHost, stream_));
  }
  void clear(std::uint8_t* at, std::size_t size) override {
    const CurrentDevice current(device_);
    LOOSELEAF_CUDA(cudaMemsetAsync(at, 0, size, stream_));
  }

  void fingerprints(const DeviceSpan* spans, std::size_t count, const fingerprint::Key& key,
                    fingerprint::Fingerprint* out) override {
    const CurrentDevice current(device_);
    start_fingerprints(spans, count, key, out, processors_, stream_);
  }
  void select(const fingerprint::Fingerprint* fresh, const fingerprint::Fingerprint* last, std::size_t count,
              std::uint32_t* indices, std::uint32_t* found) override {
    const CurrentDevice current(device_);
    start_select(fresh, last, count, indices, found, stream_);
  }
  void gather(const DeviceSpan* spans, const std::uint64_t* offsets, std::size_t count, std::uint8_t* to) override {
    const CurrentDevice current(device_);
    start_gather(spans, offsets, count, to, processors_, stream_);
  }
  void compare(const DeviceSpan* fresh, const DeviceSpan* old, std::size_t count, std::uint8_t* changed) override {
    const CurrentDevice current(device_);
    start_compare(fresh, old, count, changed, processors_, stream_);
  }

  std::unique_ptr<DeviceEvent> record() override {
    const CurrentDevice current(device_);
    return std::make_unique<CudaEvent>(stream_);
  }
  void synchronize() override {
    const CurrentDevice current(device_);
    LOOSELEAF_CUDA(cudaStreamSynchronize(stream_));
  }

 private:
  int device_;
  unsigned processors_ = 0;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::shared_ptr<Device> open_cuda_device(int device) { return std::make_shared<CudaStreamDevice>(device); }

int device_of(const void* data, const char* which) {
  cudaPointerAttributes attributes{};
  LOOSELEAF_CUDA(cudaPointerGetAttributes(&attributes, data));
  if (attributes.type == cudaMemoryTypeManaged) {
    throw InvalidInput("MANAGED_MEMORY", std::string(which) + " is managed memory, which is saved as host memory");
  }
  if (attributes.type != cudaMemoryTypeDevice) {
    throw InvalidInput("NOT_DEVICE_MEMORY", std::string(which) + " is not an address of device memory");
  }
  return attributes.device;
}

}  // namespace looseleaf::dirty_tracker
