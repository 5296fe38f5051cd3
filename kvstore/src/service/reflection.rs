//! grpc.reflection, in the version of today and in the one that most tools still ask for.

use tonic_reflection::server::{Builder, Error, v1, v1alpha};

fn builder() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(wire::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// grpc.reflection.v1.
pub fn v1() -> Result<v1::ServerReflectionServer<impl v1::ServerReflection>, Error> {
    builder().build_v1()
}

/// grpc.reflection.v1alpha.
pub fn v1alpha() -> Result<v1alpha::ServerReflectionServer<impl v1alpha::ServerReflection>, Error> {
    builder().build_v1alpha()
}
