"""Standard gRPC services, and skein.v1 through reflection alone: no generated code."""

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


@pytest.fixture(scope="module")
def channel(cluster):
    with grpc.insecure_channel(cluster.address) as open_channel:
        yield open_channel


def test_health(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    assert stub.Check(health_pb2.HealthCheckRequest(service="")).status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_and_generate(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "skein.v1.Inference" in database.get_services()
    pool = descriptor_pool.DescriptorPool(database)
    method = pool.FindServiceByName("skein.v1.Inference").FindMethodByName("Generate")
    request_type = message_factory.GetMessageClass(method.input_type)
    response_type = message_factory.GetMessageClass(method.output_type)
    call = channel.unary_stream(
        "/skein.v1.Inference/Generate",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response_type.FromString,
    )
    request = request_type(text="import os\n", return_token_ids=True)
    request.sampling.max_tokens = 8
    request.sampling.temperature = 0
    responses = list(call(request))
    tokens = [token for response in responses for token in response.token_ids]
    assert 1 <= len(tokens) <= 8
    assert responses[-1].usage.completion_tokens >= len(tokens)
    positions = [response.from_position for response in responses if response.token_ids]
    assert positions == sorted(positions)

    request.sampling.allowed_token_ids.extend([300, 301, 302])
    request.sampling.bad_words.append("return")
    assert {token for response in call(request) for token in response.token_ids} <= {300, 301, 302}

    request.sampling.temperature = 7
    with pytest.raises(grpc.RpcError) as error:
        list(call(request))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "temperature" in error.value.details()
